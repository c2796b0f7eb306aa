"""The user's values for settings of workers: checks them, and converts them to environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from farandole.base.settings.declaration import PREFIX, Setting, as_text
from farandole.base.settings.table import SETTINGS
from farandole.base.settings.values import TooLarge
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
    except (ValueError, KeyError) as error:
        limit = f", {error}" if isinstance(error, TooLarge) else ""
        if row.flag is None:
            raise SpecError(f"{row.name} is {value!r}, but should be {row.expects}{limit}") from None
        has_unit = row.flag.unit != 1
        given = as_text(value // row.flag.unit if has_unit else value)
        expects = f"a number of {row.flag.metavar} that is not negative" if has_unit else row.expects
        raise SpecError(
            f"--{row.flag.name} is {given}, but should be {expects}{limit}",
            f"see --{row.flag.name} in farandole run --help",
        ) from None


def with_environment(asked: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings, completed with those from the launcher's environment that the launcher itself needs.

    Given values are kept. The backend determines which program can start the workers; the launcher serves the metrics
    of the job; and it waits for workers as long as they wait for each other.

    Raises:
        SpecError: the value of a variable is not valid.
    """
    return with_start_timeout(with_metrics(with_backend(asked, environment), environment), environment)


def with_backend(asked: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings with the backend from an environment added, unless one is given.

    Raises:
        SpecError: a variable does not name a backend.
    """
    row = SETTINGS["backend"]
    backend = None if asked.get("backend") is not None else _read(row, row.variables, environment)
    return dict(asked) if backend in (None, row.default) else {**asked, "backend": backend}


def with_metrics(asked: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings with the address of the metrics from an environment added, unless one is given.

    Raises:
        SpecError: the variable is not a valid address.
    """
    row = SETTINGS["metrics"]
    variables = row.variables[:1]
    if asked.get("metrics") is not None or _read(row, variables, environment) is None:
        return dict(asked)
    return {**asked, "metrics": environment[variables[0]]}


def with_start_timeout(asked: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings with the start timeout from an environment added, unless one is given.

    Raises:
        SpecError: the variable is not a number of seconds above 0.
    """
    row = SETTINGS["start_timeout"]
    seconds = None if asked.get("start_timeout") is not None else _read(row, row.variables, environment)
    return dict(asked) if seconds is None else {**asked, "start_timeout": seconds}


def _read(row: Setting, variables: Sequence[str], environment: Mapping[str, str]) -> Any:
    """Return the value of a setting in an environment; None if it is not set."""
    for variable in variables:
        if text := environment.get(variable):
            try:
                return row.parse(text)
            except ValueError:
                raise SpecError(f"{variable}={text}: expected {row.expects}", "correct or unset it") from None
    return None


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
