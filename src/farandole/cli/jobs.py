"""`farandole jobs`: which elastic jobs of this user run."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farandole.launcher.daemon.jobs import JobDirectory, JobRecord

_EPILOG = """\
One line for each job: its name, since when it runs, how many workers it has, and its command. A job that has ended when
nobody looked is listed until farandole run --attach NAME has shown its end.
"""


def add_parser(verbs: Any) -> None:
    """Add this verb to the command line."""
    parser = verbs.add_parser(
        "jobs",
        help="list the elastic jobs that run",
        usage="farandole jobs",
        description="Lists this user's elastic jobs on this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(execute=execute, parser=parser)


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    from farandole.launcher.daemon.jobs import jobs_of_this_user
    from farandole.launcher.output.text_table import table

    jobs = jobs_of_this_user(os.environ).known()
    if not jobs:
        print("no job runs", file=sys.stderr)
        return 0
    for line in table([("name", "since", "workers", "command"), *(_row(*job) for job in jobs)]):
        print(line)
    return 0


def _row(directory: JobDirectory, record: JobRecord) -> tuple[str, ...]:
    import shlex
    import time

    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.started))
    return record.name, since, _workers(directory, record), shlex.join(record.command)


def _workers(directory: JobDirectory, record: JobRecord) -> str:
    """Say how many workers there are, or why that is not known."""
    import socket

    from farandole.launcher.daemon.client_requests import status_of

    ended = directory.ended()
    if ended is not None:
        return f"ended with code {ended.exit_code}"
    if record.host != socket.gethostname():
        return f"on host {record.host}"
    status = status_of(directory)
    if status is None:
        return "?"
    return f"{status.size} ({status.waits_for})" if status.waits_for else str(status.size)
