"""The common parts of the verbs about jobs: `--on`, `--json`, and descriptions of jobs for people.

They behave in the same way at every place; `farandole.control.jobs.places` lists the places.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from farandole.base.display.tables import show
from farandole.base.display.wording import count
from farandole.control.cli.parser import Parser
from farandole.control.jobs.errors import JobError
from farandole.control.jobs.places import PLACES, connect_to_jobs
from farandole.control.jobs.service import JobService
from farandole.control.jobs.status import JobState, JobStatus, to_dict

PLACES_HELP = f"where jobs run: {', '.join(PLACES)} (default: FARANDOLE_ON, a queue on this machine, or local)"


def add_options(parser: Parser) -> None:
    """Add the options that all verbs about jobs have."""
    parser.add_argument("--on", metavar="PLACE", help=PLACES_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def connect(given: argparse.Namespace) -> tuple[str, JobService]:
    """Return the place where the jobs are, and its service."""
    return connect_to_jobs(given.on, os.environ, getattr(given, "job", None), warn_of_place)


def warn_of_place(error: JobError) -> None:
    """Print the reason why the default place is skipped."""
    print(f"warning: {error.message}; showing only the jobs of farandole run on this machine", file=sys.stderr)
    print(f"hint: {error.hint}", file=sys.stderr)


def add_job(parser: Parser) -> None:
    parser.add_argument("job", metavar="JOB", help="the job's name")


def add_action(parser: Parser, verb: str, *, description: str, done: str, arguments: Sequence[str] = ()) -> None:
    """Add a verb that does one thing with one job: its function, its options, and the texts of its help.

    Args:
        parser: the parser of the verb.
        verb: its name, which is also that of the service's method.
        description: the text of its help.
        done: the message on success, after the job's name; a name of an option in braces stands for its value.
        arguments: the options that are passed to the method after the job's name.
    """
    parser.describe(
        partial(_act, verb=verb, done=done, arguments=arguments),
        usage=f"farandole {verb} JOB [--on PLACE] [--json]",
        description=description,
        epilog=f"example: farandole {verb} resnet-2",
    )
    add_options(parser)
    add_job(parser)


def _act(given: argparse.Namespace, verb: str, done: str, arguments: Sequence[str]) -> int:
    """Perform an action on a job, report it, and return the exit code."""
    _place, service = connect(given)
    getattr(service, verb)(given.job, *(getattr(given, each) for each in arguments))
    if given.json:
        print_json(to_dict(service.status(given.job)))
    else:
        print(f"farandole: job {given.job} {done.format_map(vars(given))}", file=sys.stderr)
    return 0


def print_json(plain: Any) -> None:
    print(json.dumps(plain, indent=2))


def sentence(status: JobStatus) -> str:
    """Return one sentence about the state of a job, without its name."""
    if status.state in (JobState.STARTING, JobState.RUNNING):
        word = "starts" if status.state is JobState.STARTING else "runs"
        where = f" on {', '.join(status.hosts)}" if status.hosts else ""
        return f"{word} with {count(status.wanted, 'worker')}{where}"
    if status.state is JobState.WAITING:
        return status.reason or "waits"
    if status.state is JobState.RESTARTING:
        return f"is restarting: {status.reason}"
    word = "is suspended" if status.state is JobState.SUSPENDED else f"has {_PAST[status.state.value]}"
    return f"{word}: {status.reason}" if status.reason else word


_PAST = {"Succeeded": "succeeded", "Failed": "failed", "Cancelled": "been cancelled"}


def show_jobs(jobs: Sequence[JobStatus]) -> None:
    """Print jobs as a table; columns without content are omitted."""
    columns = {
        "name": [job.name for job in jobs],
        "state": [job.state.value for job in jobs],
        "workers": [_workers(job) for job in jobs],
        "user": [job.user for job in jobs],
        "queue": [job.queue for job in jobs],
        "priority": [str(job.priority) if job.priority else "" for job in jobs],
        "since": [moment(_since(job)) for job in jobs],
        "reason": [printable(job.reason) for job in jobs],
        "command": [printable(shlex.join(job.command)) for job in jobs],
    }
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    if len(set(kept.get("queue", []))) == 1 and kept["queue"][0] == "default":
        del kept["queue"]
    show([tuple(kept), *zip(*([cell or "-" for cell in cells] for cells in kept.values()), strict=True)])


def printable(text: str) -> str:
    """Return text from an untrusted source with its control characters escaped, so that it cannot alter the terminal.

    Example:
        >>> printable("clear \\x1b[2J")
        'clear \\\\x1b[2J'
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _workers(job: JobStatus) -> str:
    if job.state.is_over:
        return "-"
    if job.workers == job.wanted or not job.wanted:
        return str(job.workers)
    return f"{job.workers}/{job.wanted}"


def _since(job: JobStatus) -> float | None:
    return job.finished or job.started or job.created


def moment(at: float | None) -> str:
    """Return a time as local date and time."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
