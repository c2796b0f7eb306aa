"""`farandole suspend`: take a job's workers away for a while."""

from __future__ import annotations

import argparse
from typing import Any

from farandole.control.cli import job_verbs


def add_parser(verbs: Any) -> None:
    """Add this verb to the command line."""
    job_verbs.add_action(
        verbs,
        "suspend",
        help="take a job's workers away for a while",
        description="Suspends a job: it saves what it needs, as its `suspension` says, and gives its slots back until "
        "it is resumed.",
        execute=execute,
    )


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    return job_verbs.act(given, "suspend", "is being suspended; farandole resume lets it go on")
