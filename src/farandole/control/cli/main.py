"""The `farandole` command: finds the verb and runs it.

Only the module of the verb that is given is imported, so the help and a mistyped verb are answered at once.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NoReturn

from farandole.base.display.standard_output import is_output_lost
from farandole.base.display.wording import error_lines
from farandole.base.installed import own_version
from farandole.base.wire.os_text import show_os_text
from farandole.base.wire.utf8_mode import ensure_utf8
from farandole.control.cli.parser import USAGE_ERROR, HelpFormatter, Parser
from farandole.control.jobs.errors import JobError
from farandole.errors import LaunchError, SpecError

VERBS: Mapping[str, Mapping[str, str]] = {
    "training": {
        "run": "run a command on several workers",
        "init": "make a training script distributed",
        "submit": "submit a job to a queue, Kubernetes or Slurm",
    },
    "jobs": {
        "jobs": "list jobs",
        "status": "show the state of a job, and the reason for it",
        "logs": "show what a job prints",
        "scale": "change the number of workers",
        "cancel": "end a job",
        "suspend": "pause a job and free its slots",
        "resume": "let a suspended job continue",
        "stop": "end an elastic job",
        "kill": "kill one worker of a job, for demonstrations and drills",
        "hosts": "list the hosts of an elastic job, or change them",
        "dashboard": "show jobs in the browser",
    },
    "clusters and queues": {
        "queue": "start, stop and configure a queue for a few machines",
        "kubernetes": "the operator of MPIJobs and TrainingJobs: install it, remove it, run it",
        "simulate": "simulate scheduling policies on traces of jobs",
    },
    "this machine": {
        "doctor": "check this machine, and advise what to do",
        "test": "check that jobs work here, and measure the links",
        "bench": "measure collectives on this machine",
        "trace": "summarize a timeline",
        "config": "show every setting and where its value comes from",
    },
    "this command": {
        "completion": "print the completion of this command for a shell",
        "man": "print the manual page of this command",
    },
}
"""All verbs with their help lines, in the groups of the help text. The module of a verb has the verb's name."""

_SHORT = {
    "training": ("run", "init", "submit"),
    "jobs": ("jobs", "status", "logs", "cancel", "kill", "dashboard"),
    "this machine": ("doctor", "test", "config"),
    "more": ("--version", "--help-all"),
}


_NO_ACCESS = {
    errno.ENOSPC: "free some space there, or choose another place",
    errno.EDQUOT: "your quota there is used up: free some space, or choose another place",
    errno.EACCES: "check its permissions, or choose another place",
    errno.EPERM: "check its permissions, or choose another place",
    errno.EROFS: "the file system is read-only: choose another place",
}
"""The next step for errors of any file, about which the verb itself says nothing."""


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *args: object) -> NoReturn:
        # argparse's own action would look up the version for every command.
        print(f"farandole {own_version()}")
        parser.exit()


def make_parser(only: str | None = None) -> Parser:
    """Return the parser of the whole command line.

    Args:
        only: the one verb whose options are added, or "" for none; None: the options of all verbs are added.
    """
    parser = Parser(
        prog="farandole",
        usage="farandole VERB ...",
        description="Runs a training script on several workers.",
        epilog="example: farandole run -np 2 python train.py\nHelp for a verb: farandole VERB --help",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("-v", "--version", action=_Version, nargs=0, help="print the version and exit")
    verbs = parser.add_subparsers(metavar="VERB", dest="verb", prog="farandole", parser_class=Parser)
    for name, help_line in _verbs().items():
        verb = verbs.add_parser(name, help=help_line, formatter_class=HelpFormatter)
        if only is None or name == only:
            import_module(f"{__package__}.{name}").add_options(verb)
    parser.shorten(_SHORT)
    parser.complete = {title: tuple(group) for title, group in VERBS.items()}
    parser.complete["more"] = ("--version", "--help", "--help-all")
    return parser


def _verbs() -> dict[str, str]:
    """Return all verbs with their help lines."""
    return {name: help_line for group in VERBS.values() for name, help_line in group.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if arguments is None:
        ensure_utf8()
    show_os_text(sys.stdout, sys.stderr)
    try:
        code = _execute(sys.argv[1:] if arguments is None else list(arguments))
        print(end="", flush=True)  # Unlike sys.stdout.flush(), works if standard output is closed.
    except (SpecError, JobError) as error:
        return _refuse(error)
    except LaunchError as error:  # The launcher of a running job did not do what the verb asked for.
        print(error_lines(str(error)), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)  # The next output starts on a new line, not after ^C.
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of our output, such as `head`, has closed the pipe.
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        hint = _NO_ACCESS.get(error.errno or 0)
        lost = is_output_lost()
        if hint is None or not (lost or error.filename):
            raise
        if lost:
            _discard_output()
        name = "standard output" if lost else os.fsdecode(error.filename)
        print(error_lines(f"{name} cannot be used: {error.strerror}", hint), file=sys.stderr)
        return 1
    return code


def _execute(words: list[str]) -> int:
    """Parse a command line, execute its verb, and return the exit code."""
    parser = make_parser(next((word for word in words if not word.startswith("-")), ""))
    words, told = _with_project(words)
    _refuse_without_verb(parser, words)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        # argparse would let the top-level parser report it, whose help does not list the verb's options.
        getattr(options, "parser", parser).refuse(unknown)
    if options.verb is None:
        parser.print_help(sys.stderr)
        return USAGE_ERROR
    if told and options.verbose:
        print(f"farandole: {told}", file=sys.stderr)
    code: int = options.execute(options)
    return code


def _discard_output() -> None:
    """Discard the buffered output, which Python would otherwise write, and complain about, when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse_without_verb(parser: Parser, words: Sequence[str]) -> None:
    """Reject what looks like a call of horovodrun or torchrun, and show the equivalent command."""
    first = words[0] if words else ""
    if first.startswith("python") or first.endswith(".py"):
        command = words if first.startswith("python") else ["python", *words]
        parser.error(f"unknown verb {first!r}", f"did you mean farandole run -np 2 {' '.join(command)}?")
    if not first.startswith("-") or first in parser._option_string_actions or set(words) & _verbs().keys():
        return
    if not all(word.startswith("-") for word in words):
        parser.error(f"{first}: a verb must come first", f"did you mean farandole run {' '.join(words)}?")


def _with_project(arguments: list[str]) -> tuple[list[str], str]:
    """Return the command line with the project file's options added, and a sentence about them."""
    if arguments[:1] != ["run"]:
        return arguments, ""
    # Only this verb has options in a project file, and the import of all that reads it takes time.
    from farandole.control.cli.project_options import with_project

    return with_project(arguments)


def _refuse(error: SpecError | JobError) -> int:
    """Print the error and its hint, and return the exit code."""
    print(error_lines(error.message, error.hint), file=sys.stderr)
    return USAGE_ERROR
