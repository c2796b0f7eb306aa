"""`farandole suspend`: pause a job and free its slots."""

from __future__ import annotations

from farandole.control.cli import job_verbs
from farandole.control.cli.parser import Parser


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    job_verbs.add_action(
        parser,
        "suspend",
        description="Suspends a job: it saves its state, as its `suspension` says, and gives up its slots until "
        "it is resumed.",
        done="is being suspended; farandole resume lets it continue",
    )
