"""Options of `farandole run` that a project file gives, put before those of the command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from farandole.cli import run

if TYPE_CHECKING:
    from farandole.launcher.project import Option, Project

_PATHS = ("FILE", "DIR")
_WORTH_NOTHING = ("help", "dry-run")


def with_project(arguments: Sequence[str]) -> tuple[list[str], str]:
    """Return a command line with what the project file says in it, and a sentence about that; "" when there is none.

    Raises:
        SpecError: the project file is wrong.
    """
    if arguments[:1] != ["run"] or arguments[1:2] in (["-h"], ["--help"]):
        return list(arguments), ""
    project = read_project()
    if project is None:
        return list(arguments), ""
    from farandole.launcher.project import words

    given = words(project, options_of_run(), os.environ)
    shown = " ".join(word.partition("=")[0] for word in given if word != "-x")  # Values of variables may be secrets.
    return ["run", *given, *arguments[1:]], f"options from {project.path}: {shown or 'none'}"


def read_project() -> Project | None:
    """Return the project file that holds for the current folder.

    Raises:
        SpecError: it is wrong.
    """
    from farandole.launcher.project import find, read

    path = find(Path.cwd())
    return None if path is None else read(path)


def parser_of_run() -> argparse.ArgumentParser:
    """Return the parser of `farandole run` alone."""
    from farandole.cli.main import Parser

    verbs = Parser().add_subparsers(parser_class=Parser)
    run.add_parser(verbs)
    parser: argparse.ArgumentParser = verbs.choices["run"]
    return parser


def options_of_run() -> dict[str, Option]:
    """Return the options of `farandole run` by their long names, without those that only ask."""
    named = {long_name(action): action for action in parser_of_run()._actions}
    return {name: _option(name, action) for name, action in named.items() if name and name not in _WORTH_NOTHING}


def long_name(action: argparse.Action) -> str:
    """Return an option's name without dashes; "" for one that has only a short name, such as -x, or none at all."""
    return next((name[2:] for name in action.option_strings if name.startswith("--")), "")


def _option(name: str, action: argparse.Action) -> Option:
    from farandole.launcher.project import Option

    return Option(
        name=name,
        is_switch=action.nargs == 0,
        repeats=isinstance(action, argparse._AppendAction),
        is_path=action.metavar in _PATHS,
        type=action.type or str,
        choices=tuple(map(str, action.choices or ())),
        default=action.default,
        description=action.help or "",
    )
