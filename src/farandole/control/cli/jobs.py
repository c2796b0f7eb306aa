"""`farandole jobs`: list jobs."""

from __future__ import annotations

import argparse
import sys

from farandole.control.cli import job_verbs
from farandole.control.cli.parser import Parser
from farandole.control.jobs.status import to_dict

_EPILOG = """\
One line for each job. With --on local: this user's elastic jobs on this machine; one that ended while no terminal was
attached is listed until farandole run --attach NAME has shown its end. A queue lists finished jobs for a week.
"""


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole jobs [--on PLACE] [--active] [--json]",
        description="Lists jobs, oldest first.",
        epilog=_EPILOG,
    )
    job_verbs.add_options(parser)
    parser.add_argument("--active", action="store_true", help="omit finished jobs")


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    place, service = job_verbs.connect(given)
    jobs = [job for job in service.jobs() if not (given.active and job.state.is_over)]
    if given.json:
        job_verbs.print_json([to_dict(job) for job in jobs])
    elif not jobs:
        print("no job is running" if place == "local" else f"no jobs on {place}", file=sys.stderr)
    else:
        job_verbs.show_jobs(jobs)
    return 0
