"""The declaration of one setting: a row of the table, and how it becomes a field of `Settings`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, field
from typing import Any

PREFIX = "FARANDOLE_"


@dataclass(frozen=True)
class Flag:
    """The option of `farandole run` that sets a setting. Its name is the key in the project file too."""

    name: str
    """Long name of the option, without its dashes."""
    help: str
    metavar: str | None = None
    """Name of the value in help texts; None: the option has choices, or is a switch."""
    type: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()
    unit: int = 1
    """Size of the flag's unit in units of the setting."""
    group: str = ""
    """Option group in `farandole run --help`; "": the first one."""
    needs: str = ""
    """Name of the setting that this one requires to have an effect; "": none."""
    alone: str = ""
    """Message if that setting is missing."""
    value_alone: str = ""
    """Value of the option without an argument; other values must follow an equals sign. "": a value is required."""

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return self.metavar is None and not self.choices

    @property
    def usage(self) -> str:
        """Notation of the option, for hints."""
        if self.value_alone:
            return f"--{self.name}[={self.metavar}]"
        return f"--{self.name}" if self.metavar is None else f"--{self.name} {self.metavar}"


@dataclass(frozen=True)
class Setting:
    """One row of the table, with a field for each column."""

    name: str
    default: Any
    parse: Callable[[str], Any]
    """Parses a variable's text; raises ValueError or KeyError."""
    expects: str
    """Description of valid texts, for errors."""
    horovod: str | None
    """Horovod's variable of the same meaning, read if farandole's is not set; None: there is none."""
    flag: Flag | None
    unset: str
    """Description of the effective value if nothing is set and the default does not show it."""
    engine: bool
    """Whether the native engine has an option of this name."""

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables of the setting; the first that is set is used."""
        ours = PREFIX + self.name.upper()
        return (ours,) if self.horovod is None else (ours, self.horovod)

    @property
    def is_path(self) -> bool:
        """Whether a relative value is relative to the directory in which the job is started."""
        return self.flag is not None and self.flag.metavar in ("FILE", "DIR")


def as_text(value: Any) -> str:
    """Return a value as text for an environment variable or the C ABI."""
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def setting(
    default: Any,
    parse: Callable[[str], Any],
    expects: str,
    horovod: str | None = None,
    *,
    flag: Flag | None = None,
    unset: str = "",
    engine: bool = False,
    shown: bool = True,
) -> Any:
    """Declare a setting: a field of the table, with its description in the docstring below it.

    The arguments are the fields of `Setting`.

    Args:
        default: value if no variable is set.
        parse: parser of a variable's text.
        expects: description of valid texts.
        horovod: Horovod's variable of the same meaning.
        flag: option of `farandole run`.
        unset: description of the effective value if nothing is set.
        engine: whether the native engine has an option of this name.
        shown: whether the value may appear in messages.
    """
    columns = {"parse": parse, "expects": expects, "horovod": horovod, "flag": flag, "unset": unset, "engine": engine}
    return field(default=default, repr=shown, metadata=columns)


def row_of(declared: Field[Any]) -> Setting:
    """Return a field of the table as a row."""
    return Setting(name=declared.name, default=declared.default, **declared.metadata)
