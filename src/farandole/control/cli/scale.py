"""`farandole scale`: change the number of workers of a job."""

from __future__ import annotations

from farandole.control.cli import job_verbs
from farandole.control.cli.parser import Parser


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    job_verbs.add_action(
        parser,
        "scale",
        description="Changes the number of workers that a job asks for. An elastic job gets them while it trains.",
        done="now asks for {workers} workers",
        arguments=("workers",),
    )
    parser.usage, parser.epilog = "farandole scale JOB N [--on PLACE] [--json]", "example: farandole scale resnet-2 8"
    parser.add_argument("workers", type=int, metavar="N", help="the new number of workers")
