"""`farandole config`: show the value of every setting, and where it comes from."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from farandole.base.display.tables import show
from farandole.base.spelling import did_you_mean
from farandole.base.wire.encoding import format_json
from farandole.control.cli.parser import Parser
from farandole.control.cli.project_options import given_options, options_of_run, read_project
from farandole.control.launcher.configuration.project import Project, words
from farandole.control.launcher.configuration.provenance import Provenance, Sources, first_sentence, provenances
from farandole.errors import SpecError

_BAD_VALUE = 1

_EPILOG = """\
examples:
  farandole config                               all settings of workers, and the options of farandole run
  farandole config start_timeout                 one of them, in full
  farandole config --with --timeline t.json      as if farandole run were given these options

A flag overrides the environment, which overrides the project file, which overrides the default. The project file is
farandole.toml in this folder or above it, up to the root of the git work tree, or [tool.farandole] in pyproject.toml:

  [run]                     # options of farandole run, by their long names
  num-proc = 4
  start-timeout = 60

  [env]                     # variables for the workers
  NCCL_DEBUG = "WARN"

The exit code is 1 when a setting has a value that cannot be used.
"""


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole config [NAME] [--json] [--with OPTIONS ...]",
        description="Shows the value of every setting, and where it comes from.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="show only this setting, given by its name, variable or option")
    add("--json", action="store_true", help="print JSON instead of text")
    add(
        "--with",
        dest="flags",
        nargs=argparse.REMAINDER,
        default=[],
        metavar="OPTIONS",
        help="show the settings as if farandole run had these options; must be the last option",
    )


def execute(options: argparse.Namespace) -> int:
    project = read_project()
    known = options_of_run()
    if project is not None:
        words(project, known, os.environ)  # Raises if the file has a mistake.
    rows = provenances(Sources(os.environ, known, _given(options.flags), project))
    if options.name is not None:
        rows = [find(rows, options.name)]
    if options.json:
        _print_json(rows, project)
    elif options.name is not None:
        print(render_one(rows[0]))
    else:
        _show(rows, project)
    for row in rows:
        if row.problem:
            print(f"error: {row.problem}", file=sys.stderr)
    return _BAD_VALUE if any(row.problem for row in rows) else 0


def _given(flags: Sequence[str]) -> dict[str, str]:
    """Return the options of `farandole run` in a command line, as text."""
    return {name: _text(value) for name, value in given_options(flags).items()}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def find(rows: Sequence[Provenance], name: str) -> Provenance:
    """Return the setting that has this name, variable or option.

    Raises:
        SpecError: no setting has it.
    """
    names = {other: row for row in rows for other in (row.name, *row.variables, row.option or row.name)}
    row = names.get(name) or names.get(f"--{name}")
    if row is None:
        raise SpecError(f"there is no setting {name!r}", did_you_mean(name, names) or "farandole config lists them")
    return row


def _show(rows: Sequence[Provenance], project: Project | None) -> None:
    """Print all settings as two tables, preceded by the project file that was read."""
    print("no project file" if project is None else f"project file: {project.path}")
    for side, title in (("worker", "workers"), ("launcher", "farandole run")):
        print(f"\n{title}", flush=True)
        cells = [(row.name, row.value, row.source, first_sentence(row.description)) for row in rows if row.side == side]
        show([("setting", "value", "source", "what it is"), *cells])


def render_one(row: Provenance) -> str:
    """Return everything about one setting, as text."""
    lines = [
        ("setting", row.name),
        ("value", row.value),
        ("source", row.source),
        ("default", row.default),
        ("variable", ", ".join(row.variables)),
        ("option", row.option and f"{row.option} of farandole run"),
        ("expects", row.expects),
    ]
    return "\n".join([f"{label:<10}{text}" for label, text in lines if text] + ["", row.description])


def _print_json(rows: Sequence[Provenance], project: Project | None) -> None:
    told = {"project": None if project is None else str(project.path), "settings": rows}
    print(format_json(told, indent=1))
