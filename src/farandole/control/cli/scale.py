"""`farandole scale`: give a job another number of workers."""

from __future__ import annotations

import argparse
from typing import Any

from farandole.control.cli import job_verbs


def add_parser(verbs: Any) -> None:
    """Add this verb to the command line."""
    parser = job_verbs.add_action(
        verbs,
        "scale",
        help="ask for another number of workers",
        description="Asks for another number of workers. An elastic job gets them while it trains.",
        execute=execute,
    )
    parser.usage, parser.epilog = "farandole scale JOB N [--on PLACE] [--json]", "example: farandole scale resnet-2 8"
    parser.add_argument("workers", type=int, metavar="N", help="how many")


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    return job_verbs.act(given, "scale", f"is to have {given.workers} workers", given.workers)
