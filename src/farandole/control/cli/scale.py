"""`farandole scale`: give a job another number of workers."""

from __future__ import annotations

import argparse

from farandole.control.cli import job_verbs
from farandole.control.cli.parser import Parser


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    job_verbs.add_action(
        parser,
        "scale",
        description="Asks for another number of workers. An elastic job gets them while it trains.",
        execute=execute,
    )
    parser.usage, parser.epilog = "farandole scale JOB N [--on PLACE] [--json]", "example: farandole scale resnet-2 8"
    parser.add_argument("workers", type=int, metavar="N", help="how many")


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    return job_verbs.act(given, "scale", f"is to have {given.workers} workers", given.workers)
