"""`farandole resume`: let a suspended job continue."""

from __future__ import annotations

from farandole.control.cli import job_verbs
from farandole.control.cli.parser import Parser


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    job_verbs.add_action(
        parser,
        "resume",
        description="Lets a suspended job continue as soon as its turn comes again.",
        done="waits for its turn again",
    )
