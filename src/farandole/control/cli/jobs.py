"""`farandole jobs`: which jobs there are."""

from __future__ import annotations

import argparse
import sys

from farandole.control.cli import job_verbs
from farandole.control.cli.parser import Parser

_EPILOG = """\
One line for each job. --on local lists this user's elastic jobs on this machine: one that has ended when nobody looked
is listed until farandole run --attach NAME has shown its end. A queue lists jobs that are over for a week.
"""


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole jobs [--on PLACE] [--active] [--json]",
        description="Lists jobs, the oldest first.",
        epilog=_EPILOG,
    )
    job_verbs.add_options(parser)
    parser.add_argument("--active", action="store_true", help="leave out jobs that are over")


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    place, service = job_verbs.connect(given)
    jobs = [job for job in service.jobs() if not (given.active and job.state.is_over)]
    if given.json:
        job_verbs.print_json([job_verbs.as_plain(job) for job in jobs])
    elif not jobs:
        print("no job runs" if place == "local" else f"there is no job on {place}", file=sys.stderr)
    else:
        job_verbs.show_jobs(jobs)
    return 0
