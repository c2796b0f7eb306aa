"""The project file: options of `farandole run`, and variables of its workers, that apply to a whole folder.

    # farandole.toml; in pyproject.toml the same under [tool.farandole.run] and [tool.farandole.env]
    [run]
    num-proc = 4
    start-timeout = 60

    [env]
    NCCL_DEBUG = "WARN"

A flag overrides the environment, which overrides the project file, which overrides the default.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farandole.base.settings.table import FLAGS, SETTINGS
from farandole.base.spelling import did_you_mean
from farandole.errors import SpecError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "farandole.toml"
SHARED_NAME = "pyproject.toml"
TABLES = ("run", "env")


@dataclass(frozen=True)
class Option:
    """The parts of an option of `farandole run` that a project file needs."""

    name: str
    """The long name, without its dashes."""
    is_switch: bool = False
    """Whether it has no value."""
    repeats: bool = False
    """Whether it may be given several times."""
    is_path: bool = False
    excludes: frozenset[str] = frozenset()
    """Options that cannot be combined with it."""
    type: Any = str
    """Called with the text of a value; raises ValueError if it is not valid."""
    choices: tuple[str, ...] = ()
    default: Any = None
    description: str = ""


@dataclass(frozen=True)
class Project:
    """The contents of a project file."""

    path: Path
    run: Mapping[str, Any]
    """Values by option: text, a number, true or false, or a list of those."""
    environment: Mapping[str, str]


def find(directory: Path) -> Path | None:
    """Return the project file for a folder: in the folder or above it, up to the root of its git work tree.

    Above the folder itself, a file counts only if this user or root owns it: another user must not control what is run
    from /tmp.
    """
    for folder in (directory, *directory.parents):
        for path in (folder / NAME, folder / SHARED_NAME):
            if _speaks_to_us(path) and (folder == directory or path.stat().st_uid in (os.getuid(), 0)):
                return path
        if (folder / ".git").exists():
            return None
    return None


def _speaks_to_us(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        return path.name == NAME or b"[tool.farandole" in path.read_bytes()
    except OSError:
        return False  # A file of other tools that is not valid: it has no settings of farandole.


def read(path: Path) -> Project:
    """Read a project file.

    Raises:
        SpecError: it cannot be read, or contains a table or a variable that is not known.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SpecError(f"{path} cannot be read: {error}", "correct it, or move it away") from None
    if path.name == SHARED_NAME:
        tables = tables.get("tool", {}).get("farandole", {})
    for name, table in tables.items():
        if name not in TABLES:
            raise SpecError(f"{path} has the unknown name {name!r}", did_you_mean(name, TABLES) or "[run] and [env]")
        if not isinstance(table, dict):
            raise SpecError(f"{path}: {name} is not a table", f"write [{name}] on a separate line")
    environment = {name: _variable(path, name, value) for name, value in tables.get("env", {}).items()}
    return Project(path, tables.get("run", {}), environment)


def _variable(path: Path, name: str, value: object) -> str:
    for option, row in FLAGS.items():
        # As a variable it would override the flag.
        if name in row.variables:
            raise SpecError(f"{path}: --{option} sets {name}", f"write {option} = ... under [run]")
    if not isinstance(value, str | int | float):
        raise SpecError(f"{path}: {name} is not text or a number", f'write {name} = "..."')
    return str(int(value)) if isinstance(value, bool) else str(value)


def words(
    project: Project, options: Mapping[str, Option], environment: Mapping[str, str], given: Collection[str] = ()
) -> list[str]:
    """Return the options of a project file as words, to be inserted before those of the command line.

    Options that the environment or the command line already sets are omitted.

    Args:
        project: the project file.
        options: the options of `farandole run`, by name.
        environment: the environment of the launcher.
        given: the options on the command line.

    Raises:
        SpecError: an option does not exist, or does not take this value.
    """
    found = []
    for name, value in project.run.items():
        option = options.get(name)
        if option is None:
            hint = "use the options of farandole run --help, without dashes"
            said = f"{project.path}: farandole run has no option {name!r}"
            raise SpecError(said, did_you_mean(name, options) or hint)
        row = FLAGS.get(name)
        texts = values(project, option, value)
        if name in given or not option.excludes.isdisjoint(given):
            continue
        if row is None or not any(environment.get(variable) for variable in row.variables):
            found += [f"--{name}" if option.is_switch else f"--{name}={text}" for text in texts]
    for name, text in project.environment.items():
        if not environment.get(name) and not any(environment.get(other) for other in _other_names(name)):
            found += ["-x", f"{name}={text}"]
    return found


def _other_names(variable: str) -> tuple[str, ...]:
    """Return all names of the variable's setting."""
    return next((row.variables for row in SETTINGS.values() if variable in row.variables), ())


def values(project: Project, option: Option, value: object) -> list[str]:
    """Return a value of a project file as texts for its option, one for each time that the option is given.

    Raises:
        SpecError: the option does not take this value.
    """
    where = f"{project.path}: {option.name}"
    if option.is_switch:
        if not isinstance(value, bool):
            raise SpecError(f"{where} is {value!r}", "use true or false")
        return ["true"] if value else []
    parts = value if isinstance(value, list) else [value]
    if not parts or any(isinstance(part, bool) or not isinstance(part, str | int | float) for part in parts):
        raise SpecError(f"{where} is {value!r}", "use text, a number, or a list of those")
    texts = [_path(project, str(part)) if option.is_path else str(part) for part in parts]
    texts = texts if option.repeats else [",".join(texts)]
    for text in texts:
        _check(where, option, text)
    return texts


def _path(project: Project, text: str) -> str:
    """Return a path relative to the project's folder as an absolute path."""
    return os.path.join(project.path.parent, os.path.expanduser(text))


def _check(where: str, option: Option, text: str) -> None:
    if option.choices and text not in option.choices:
        raise SpecError(f"{where} is {text!r}", f"choose from {', '.join(option.choices)}")
    try:
        option.type(text)
    except (ValueError, TypeError):
        raise SpecError(f"{where} is {text!r}", f"farandole run --help explains --{option.name}") from None
