"""The user's values for settings of workers: checks, and the environment variables that carry them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from farandole.base.settings.declaration import PREFIX, Setting, as_text
from farandole.base.settings.table import SETTINGS
from farandole.errors import SpecError


def check_settings(asked: Mapping[str, Any]) -> None:
    """Check that workers can use these values.

    Args:
        asked: values in the settings' own units, by names from `SETTINGS`.

    Raises:
        SpecError: a value is not valid, or has no effect without another setting.
    """
    for name, value in asked.items():
        row = SETTINGS[name]
        _check_value(row, value)
        if row.flag is not None and row.flag.needs and not asked.get(row.flag.needs):
            needed = SETTINGS[row.flag.needs].flag
            assert needed is not None
            raise SpecError(f"--{row.flag.name} {row.flag.alone}", f"add {needed.usage}")


def _check_value(row: Setting, value: Any) -> None:
    try:
        row.parse(as_text(value))
    except (ValueError, KeyError):
        hint = "" if row.flag is None else f"see --{row.flag.name} in farandole run --help"
        raise SpecError(f"{row.name} is {value!r}, expected {row.expects}", hint) from None


def with_backend(asked: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings with the backend from the launcher's environment added, unless one is given.

    The launcher must know it: the backend decides which program can start the workers.

    Raises:
        SpecError: a variable does not name a backend.
    """
    row = SETTINGS["backend"]
    if asked.get("backend") is not None:
        return dict(asked)
    for variable in row.variables:
        if text := environment.get(variable):
            try:
                backend = row.parse(text)
            except ValueError:
                raise SpecError(f"{variable}={text}: expected {row.expects}", "correct or unset it") from None
            return {**asked, "backend": backend} if backend != row.default else dict(asked)
    return dict(asked)


def with_metrics(asked: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings with the metrics from the launcher's environment added, unless they are given.

    The launcher must know them: it serves those of the job, and decides where each worker serves its own.

    Raises:
        SpecError: the variable is not a valid place to serve them.
    """
    row = SETTINGS["metrics"]
    text = environment.get(row.variables[0])
    if asked.get("metrics") is not None or not text:
        return dict(asked)
    try:
        row.parse(text)
    except ValueError:
        raise SpecError(f"{row.variables[0]}={text}: expected {row.expects}", "correct or unset it") from None
    return {**asked, "metrics": text}


def settings_environment(asked: Mapping[str, Any], directory: str) -> dict[str, str]:
    """Return the variables that pass the given settings to workers; everything else is left to their environment.

    Args:
        asked: the settings, as for `check_settings`.
        directory: the job's directory. Paths are made absolute, as a script may change its directory before init().
    """
    variables = {}
    for name, row in SETTINGS.items():
        if (value := asked.get(name)) is not None:
            text = os.path.join(directory, value) if row.is_path else as_text(value)
            variables[PREFIX + name.upper()] = text
    return variables
