"""`farandole logs`: show what the workers of a job print."""

from __future__ import annotations

import argparse
import json
import sys

from farandole.control.cli import job_verbs
from farandole.control.cli.parser import Parser

_EPILOG = """\
Lines begin with [RANK]<stdout>: or [RANK]<stderr>: where several workers print. Ctrl-C ends only this command.
"""


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole logs JOB [-f] [--rank N] [--on PLACE]",
        description="Shows what the workers of a job have printed.",
        epilog=_EPILOG,
    )
    job_verbs.add_options(parser)
    job_verbs.add_job(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing until the job ends")
    parser.add_argument("--rank", type=int, metavar="N", help="show only this worker's lines")


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    _, service = job_verbs.connect(given)
    has_lines = False
    try:
        for line in service.logs(given.job, given.follow, given.rank):
            has_lines = True
            print(_as_json(line) if given.json else line, end="", flush=given.follow)
    except KeyboardInterrupt:
        print(
            f"\nfarandole: job {given.job} keeps running; farandole logs -f {given.job} shows its output again",
            file=sys.stderr,
        )
        return 130
    if given.rank is not None and not has_lines:
        print(
            f"farandole: rank {given.rank} has printed nothing\n"
            f"hint: farandole status {given.job} shows how many workers it has",
            file=sys.stderr,
        )
    return 0


def _as_json(line: str) -> str:
    return json.dumps({"line": line.rstrip("\n")}) + "\n"
