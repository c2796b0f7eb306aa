"""The `farandole` command: finds the verb and hands over.

Verbs import what they need when they run, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

import farandole
from farandole.base.wire.os_text import show_os_text
from farandole.control.cli import (
    bench,
    cancel,
    completion,
    config,
    dashboard,
    doctor,
    hosts,
    init,
    jobs,
    kill,
    kubernetes,
    logs,
    man,
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
    trace,
)
from farandole.control.cli.parser import USAGE_ERROR, Parser
from farandole.control.jobs.errors import JobError
from farandole.errors import SpecError

VERBS = {
    "training": (run, init, submit),
    "jobs": (jobs, status, logs, scale, cancel, suspend, resume, stop, kill, hosts, dashboard),
    "clusters and queues": (queue, kubernetes, simulate),
    "this machine": (doctor, test, bench, trace, config),
    "this command": (completion, man),
}
"""All verbs, grouped as the help has them."""

_SHORT = {
    "training": ("run", "init", "submit"),
    "jobs": ("jobs", "status", "logs", "cancel", "kill", "dashboard"),
    "this machine": ("doctor", "test", "config"),
    "more": ("--version", "--help-all"),
}


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *args: object) -> NoReturn:
        # Not argparse's own action: it would need to look the version up for every command.
        print(f"farandole {farandole.__version__}")
        parser.exit()


def make_parser() -> Parser:
    """Return the parser of the whole command line, with those of all verbs."""
    parser = Parser(
        prog="farandole",
        usage="farandole VERB ...",
        description="Runs a training script on several workers.",
        epilog="example: farandole run -np 2 python train.py\nAll about a verb: farandole VERB --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-v", "--version", action=_Version, nargs=0, help="print the version and exit")
    verbs = parser.add_subparsers(metavar="VERB", dest="verb", prog="farandole", parser_class=Parser)
    for group in VERBS.values():
        for verb in group:
            verb.add_parser(verbs)
    parser.shorten(_SHORT)
    parser.complete = {title: [_name(verb) for verb in group] for title, group in VERBS.items()}
    parser.complete["more"] = ("--version", "--help", "--help-all")
    return parser


def _name(verb: ModuleType) -> str:
    return verb.__name__.rpartition(".")[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    show_os_text(sys.stdout, sys.stderr)
    parser = make_parser()
    try:
        words, told = _with_project(sys.argv[1:] if arguments is None else list(arguments))
    except SpecError as error:
        return _refuse(error)
    _refuse_without_verb(parser, words)
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
    except KeyboardInterrupt:
        print(file=sys.stderr)  # What comes next does not stand behind ^C.
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of our output, such as `head`, has seen enough. What is still in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return code


def _refuse_without_verb(parser: Parser, words: Sequence[str]) -> None:
    """Refuse what looks like a call of horovodrun or torchrun, and say how it is written here."""
    first = words[0] if words else ""
    if first.startswith("python") or first.endswith(".py"):
        command = words if first.startswith("python") else ["python", *words]
        parser.error(f"there is no verb {first!r}", f"did you mean farandole run -np 2 {' '.join(command)}?")
    if not first.startswith("-") or first in parser._option_string_actions or set(words) & set(_all_verbs()):
        return
    if not all(word.startswith("-") for word in words):
        parser.error(f"{first}: there is no verb before it", f"did you mean farandole run {' '.join(words)}?")


def _all_verbs() -> list[str]:
    return [_name(verb) for group in VERBS.values() for verb in group]


def _with_project(arguments: list[str]) -> tuple[list[str], str]:
    """Return the command line with what the project file says in it, and a sentence about that."""
    if arguments[:1] != ["run"]:
        return arguments, ""
    from farandole.control.cli.project_options import with_project

    return with_project(arguments)


def _refuse(error: SpecError | JobError) -> int:
    """Tell what cannot be done and what to do about it, and return the exit code."""
    print(f"error: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    return USAGE_ERROR
