"""Options of `farandole run` from a project file, inserted before those of the command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farandole.control.cli import run
from farandole.control.cli.parser import Parser
from farandole.control.launcher.configuration.project import Option, Project, find, read, words

_PATHS = ("FILE", "DIR")
_ONLY_ASK = ("help", "help-all", "dry-run", "json")


def with_project(arguments: Sequence[str]) -> tuple[list[str], str]:
    """Return a command line with the project file's options added, and a sentence about them; "" if there is no file.

    Raises:
        SpecError: the project file has a mistake.
    """
    if arguments[:1] != ["run"] or arguments[1:2] in (["-h"], ["--help"], ["--help-all"]):
        return list(arguments), ""
    project = read_project()
    if project is None:
        return list(arguments), ""

    added = words(project, options_of_run(), os.environ, given_options(arguments[1:]))
    shown = " ".join(word.partition("=")[0] for word in added if word != "-x")  # Values of variables may be secrets.
    return ["run", *added, *arguments[1:]], f"options from {project.path}: {shown or 'none'}"


def read_project() -> Project | None:
    """Return the project file that applies to the current folder.

    Raises:
        SpecError: the file has a mistake.
    """
    path = find(Path.cwd())
    return None if path is None else read(path)


def parser_of_run() -> Parser:
    """Return the parser of `farandole run` only."""
    parser = Parser(prog="farandole run")
    run.add_options(parser)
    return parser


def given_options(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options of `farandole run` in a command line, by their long names."""
    parser = parser_of_run()
    for action in parser._actions:
        action.default = argparse.SUPPRESS
        action.required = False
    given = vars(parser.parse_known_args(arguments)[0])
    named = {long_name(action): action for action in parser._actions}
    return {name: given[action.dest] for name, action in named.items() if name and action.dest in given}


def options_of_run() -> dict[str, Option]:
    """Return the options of `farandole run` by their long names, except those that only print or have no effect."""
    parser = parser_of_run()
    named = {long_name(action): action for action in parser._actions if action.help != argparse.SUPPRESS}
    return {name: _option(name, action, parser) for name, action in named.items() if name and name not in _ONLY_ASK}


def long_name(action: argparse.Action) -> str:
    """Return an option's name without dashes; "" for an option with only a short name, such as -x, or with no name."""
    return next((name[2:] for name in action.option_strings if name.startswith("--")), "")


def _option(name: str, action: argparse.Action, parser: argparse.ArgumentParser) -> Option:
    groups = [group._group_actions for group in parser._mutually_exclusive_groups if action in group._group_actions]
    return Option(
        name=name,
        is_switch=action.nargs == 0,
        repeats=isinstance(action, argparse._AppendAction),
        is_path=action.metavar in _PATHS,
        excludes=frozenset(long_name(other) for group in groups for other in group if other is not action),
        type=action.type or str,
        choices=tuple(map(str, action.choices or ())),
        default=action.default,
        description=action.help or "",
    )
