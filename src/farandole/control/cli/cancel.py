"""`farandole cancel`: end a job."""

from __future__ import annotations

import argparse
from typing import Any

from farandole.control.cli import job_verbs


def add_parser(verbs: Any) -> None:
    """Add this verb to the command line."""
    job_verbs.add_action(
        verbs,
        "cancel",
        help="end a job",
        description="Ends a job in good order: its workers get SIGTERM and their grace. A second time, at once.",
        execute=execute,
    )


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    return job_verbs.act(given, "cancel", "is being ended; once more kills its workers")
