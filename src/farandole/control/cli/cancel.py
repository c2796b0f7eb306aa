"""`farandole cancel`: end a job."""

from __future__ import annotations

from farandole.control.cli import job_verbs
from farandole.control.cli.parser import Parser


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    job_verbs.add_action(
        parser,
        "cancel",
        description="Ends a job gracefully: its workers get SIGTERM and their grace period. A second call kills them.",
        done="is being ended; repeat the command to kill its workers",
    )
