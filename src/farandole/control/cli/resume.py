"""`farandole resume`: let a suspended job go on."""

from __future__ import annotations

import argparse
from typing import Any

from farandole.control.cli import job_verbs


def add_parser(verbs: Any) -> None:
    """Add this verb to the command line."""
    job_verbs.add_action(
        verbs,
        "resume",
        help="let a suspended job go on",
        description="Lets a suspended job go on when it is its turn again.",
        execute=execute,
    )


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    return job_verbs.act(given, "resume", "waits for its turn again")
