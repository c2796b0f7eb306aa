"""`farandole resume`: let a suspended job continue."""

from __future__ import annotations

import argparse

from farandole.control.cli import job_verbs
from farandole.control.cli.parser import Parser


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    job_verbs.add_action(
        parser,
        "resume",
        description="Lets a suspended job continue as soon as its turn comes again.",
        execute=execute,
    )


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    return job_verbs.act(given, "resume", "waits for its turn again")
