"""`farandole stop`: end an elastic job gracefully."""

from __future__ import annotations

import argparse
import os
import sys

from farandole.base.display.wording import error_lines
from farandole.control.cli.parser import Parser
from farandole.control.launcher.daemon.client_requests import stop
from farandole.control.launcher.daemon.jobs import jobs_of_this_user
from farandole.errors import LaunchError

_EPILOG = """\
The workers get SIGTERM and a few seconds to end by themselves, as with Ctrl-C; a second farandole stop kills them at
once. The command returns when the job has ended.
"""


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole stop [JOB]",
        description="Ends an elastic job gracefully, from any terminal.",
        epilog=_EPILOG,
    )
    parser.add_argument("job", nargs="?", metavar="JOB", help="the job's name (default: the only running job)")


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    directory, record = jobs_of_this_user(os.environ).find(given.job)
    try:
        stop(directory)
    except LaunchError as error:
        hint = f"repeat the command to kill its workers; its launcher is process {record.pid}"
        print(error_lines(str(error), hint), file=sys.stderr)
        return 1
    print(f"farandole: job {record.name} has ended", file=sys.stderr)
    return 0
