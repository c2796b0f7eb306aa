"""`farandole logs`: what the workers of a job print."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from farandole.control.cli import job_verbs

_EPILOG = """\
Lines begin with [RANK]<stdout>: or [RANK]<stderr>: where several workers print. Ctrl-C only ends this command.
"""


def add_parser(verbs: Any) -> None:
    """Add this verb to the command line."""
    parser = job_verbs.make_parser(
        verbs,
        "logs",
        help="show what a job prints",
        usage="farandole logs JOB [-f] [--rank N] [--on PLACE]",
        description="Shows what the workers of a job have printed.",
        epilog=_EPILOG,
    )
    job_verbs.add_job(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job is over")
    parser.add_argument("--rank", type=int, metavar="N", help="only this worker's lines")
    parser.set_defaults(execute=execute, parser=parser)


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    _, service = job_verbs.connect(given)
    try:
        for line in service.logs(given.job, given.follow, given.rank):
            print(_as_json(line) if given.json else line, end="", flush=given.follow)
    except KeyboardInterrupt:
        print(f"\nfarandole: job {given.job} goes on; farandole logs -f {given.job} shows it again", file=sys.stderr)
        return 130
    return 0


def _as_json(line: str) -> str:
    import json

    return json.dumps({"line": line.rstrip("\n")}) + "\n"
