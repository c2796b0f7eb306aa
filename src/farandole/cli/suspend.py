"""`farandole suspend`: take a job's workers away for a while."""

from __future__ import annotations

import argparse
from typing import Any

from farandole.cli import job_verbs


def add_parser(verbs: Any) -> None:
    """Add this verb to the command line."""
    parser = job_verbs.make_parser(
        verbs,
        "suspend",
        help="take a job's workers away for a while",
        usage="farandole suspend JOB [--on PLACE] [--json]",
        description="Suspends a job: it saves what it needs, as its `suspension` says, and gives its slots back until "
        "it is resumed.",
        epilog="example: farandole suspend resnet-2",
    )
    job_verbs.add_job(parser)
    parser.set_defaults(execute=execute, parser=parser)


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    return job_verbs.act(given, "suspend", "is being suspended; farandole resume lets it go on")
