"""The `farandole` command: finds the verb and hands over.

Verbs import what they need when they run, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import farandole
from farandole.cli import (
    bench,
    cancel,
    config,
    dashboard,
    doctor,
    hosts,
    jobs,
    kubernetes,
    logs,
    queue,
    resume,
    run,
    scale,
    simulate,
    status,
    stop,
    submit,
    suspend,
    test,
)
from farandole.jobs.errors import JobError
from farandole.launcher.errors import SpecError

VERBS = (
    *(run, hosts, stop),
    *(submit, jobs, status, logs, scale, cancel, suspend, resume),
    *(dashboard, queue, kubernetes, simulate, test, bench, doctor, config),
)

USAGE_ERROR = 2


class Parser(argparse.ArgumentParser):
    """Tells mistakes as `error:` and `hint:`."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where help is, and exit."""
        self.exit(USAGE_ERROR, f"error: {message}\nhint: see {self.prog} --help\n")

    def _parse_optional(self, arg_string: str) -> Any:
        # An option that may stand alone takes no word that follows: that is the user's command.
        alone = getattr(self._option_string_actions.get(arg_string), "value_alone", "")
        return super()._parse_optional(f"{arg_string}={alone}" if alone else arg_string)

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Print which words mean nothing here, and what may have been meant, and exit."""
        import difflib  # It takes milliseconds, which a command line without mistakes need not wait for.

        near = difflib.get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, n=1, cutoff=0.8)
        meant = f"did you mean {near[0]}? Otherwise " if near else ""
        self.exit(
            USAGE_ERROR, f"error: unrecognized arguments: {' '.join(unknown)}\nhint: {meant}see {self.prog} --help\n"
        )


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *args: object) -> NoReturn:
        # Not argparse's own action: it would need to look the version up for every command.
        print(f"farandole {farandole.__version__}")
        parser.exit()


def make_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(
        prog="farandole",
        description="Runs a training script on several workers.",
        epilog="example: farandole run -np 2 python train.py",
        allow_abbrev=False,
    )
    parser.add_argument("-v", "--version", action=_Version, nargs=0, help="print the version and exit")
    verbs = parser.add_subparsers(metavar="VERB", dest="verb", parser_class=Parser)
    for verb in VERBS:
        verb.add_parser(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = make_parser()
    try:
        words, told = _with_project(sys.argv[1:] if arguments is None else list(arguments))
    except SpecError as error:
        return _refuse(error)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        # argparse would let the whole command's parser tell it, whose help does not list the verb's options.
        getattr(options, "parser", parser).refuse(unknown)
    if options.verb is None:
        parser.print_help(sys.stderr)
        return USAGE_ERROR
    if told and options.verbose:
        print(f"farandole: {told}", file=sys.stderr)
    try:
        code: int = options.execute(options)
        print(end="", flush=True)  # Unlike sys.stdout.flush(), also where standard output is closed.
    except (SpecError, JobError) as error:
        return _refuse(error)
    except BrokenPipeError:
        # The reader of our output, such as `head`, has seen enough. What is still in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return code


def _with_project(arguments: list[str]) -> tuple[list[str], str]:
    """Return the command line with what the project file says in it, and a sentence about that."""
    if arguments[:1] != ["run"]:
        return arguments, ""
    from farandole.cli.project_options import with_project

    return with_project(arguments)


def _refuse(error: SpecError | JobError) -> int:
    """Tell what cannot be done and what to do about it, and return the exit code."""
    print(f"error: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    return USAGE_ERROR
