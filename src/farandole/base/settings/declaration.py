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
    """The long one, without its dashes."""
    help: str
    metavar: str | None = None
    """None: it has choices, or it is a switch."""
    type: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()
    unit: int = 1
    """How many of the setting's units one of the flag's is."""
    group: str = ""
    """Of `farandole run --help`; "": the first one."""
    needs: str = ""
    """The setting without which this one does nothing."""
    alone: str = ""
    """The message in that case."""
    value_alone: str = ""
    """The value that it has when it stands without one; any other must follow an equals sign. "": it needs a value."""

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return self.metavar is None and not self.choices

    @property
    def usage(self) -> str:
        """How it is written, for hints."""
        if self.value_alone:
            return f"--{self.name}[={self.metavar}]"
        return f"--{self.name}" if self.metavar is None else f"--{self.name} {self.metavar}"


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    This is a row's record, so it has a field for each column.
    """

    name: str
    default: Any
    parse: Callable[[str], Any]
    """Reads a variable's text; raises ValueError or KeyError."""
    expects: str
    """The form that the text must have."""
    horovod: str | None
    """Horovod's variable of the same meaning; read when ours is not set."""
    flag: Flag | None
    unset: str
    """For people: what holds when the default says only that nothing is set."""
    engine: bool
    """Whether the native engine takes it, under this name."""

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that it is read from; the first that is set wins."""
        ours = PREFIX + self.name.upper()
        return (ours,) if self.horovod is None else (ours, self.horovod)

    @property
    def is_path(self) -> bool:
        """Whether a relative value is meant from the folder in which the job is started."""
        return self.flag is not None and self.flag.metavar in ("FILE", "DIR")


def as_text(value: Any) -> str:
    """Write a value as a variable, or the C ABI, gets it."""
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
    """Declare a setting: a field of the table, with a docstring below it that says what it means.

    Args:
        default: its value when no variable says otherwise.
        parse: see `Setting`, as for the next five.
        expects: see there.
        horovod: see there.
        flag: see there.
        unset: see there.
        engine: see there.
        shown: whether its value may be seen.
    """
    columns = {"parse": parse, "expects": expects, "horovod": horovod, "flag": flag, "unset": unset, "engine": engine}
    return field(default=default, repr=shown, metadata=columns)


def row_of(declared: Field[Any]) -> Setting:
    """Return a field of the table as a row."""
    return Setting(name=declared.name, default=declared.default, **declared.metadata)
