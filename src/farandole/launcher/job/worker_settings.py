"""What the user asks of the workers' settings, by flag or in a call: whether it can be, and how workers get it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from farandole.launcher.errors import SpecError
from farandole.settings.declaration import PREFIX, Setting, as_text
from farandole.settings.table import SETTINGS


def check_settings(asked: Mapping[str, Any]) -> None:
    """Find out whether workers can use these values.

    Args:
        asked: values in the settings' own units, by the settings' names; those of `SETTINGS` only.

    Raises:
        SpecError: they cannot, or one does nothing without another.
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
        raise SpecError(f"{row.name} is {value!r}, but should be {row.expects}", hint) from None


def settings_environment(asked: Mapping[str, Any], directory: str) -> dict[str, str]:
    """Return the variables that tell workers what was asked for; all else is left to their environment.

    Args:
        asked: see `check_settings`.
        directory: of the job. A script may change its folder before init(), so paths are made absolute.
    """
    variables = {}
    for name, row in SETTINGS.items():
        if (value := asked.get(name)) is not None:
            text = os.path.join(directory, value) if row.is_path else as_text(value)
            variables[PREFIX + name.upper()] = text
    return variables
