"""`farandole cancel`: end a job."""

from __future__ import annotations

import argparse

from farandole.control.cli import job_verbs
from farandole.control.cli.parser import Parser


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    job_verbs.add_action(
        parser,
        "cancel",
        description="Ends a job gracefully: its workers get SIGTERM and their grace period. A second call kills them.",
        execute=execute,
    )


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    return job_verbs.act(given, "cancel", "is being ended; repeat the command to kill its workers")
