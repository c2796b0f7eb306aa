"""`farandole status`: show the state of a job and the reason for it."""

from __future__ import annotations

import argparse
import shlex
import sys

from farandole.control.cli import job_verbs
from farandole.control.cli.parser import Parser
from farandole.control.jobs.status import JobState, JobStatus, to_dict

_EPILOG = """\
For a waiting job, the reason says which job is ahead, how many slots are free, or which limit is reached.
"""


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole status JOB [--on PLACE] [--json]",
        description="Shows a job: its state and the reason for it, its workers, and the latest events.",
        epilog=_EPILOG,
    )
    job_verbs.add_options(parser)
    job_verbs.add_job(parser)


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    _, service = job_verbs.connect(given)
    status = service.status(given.job)
    if given.json:
        job_verbs.print_json(to_dict(status))
        return 0
    print(*_lines(status), sep="\n")
    if status.state is JobState.FAILED:
        on = f" --on {given.on}" if given.on else ""
        print(f"hint: farandole logs {status.name}{on} shows its output", file=sys.stderr)
    return 0


def _lines(status: JobStatus) -> list[str]:
    rows = {
        "job": f"{status.name}, on {status.place}" if status.place else status.name,
        "state": status.state.value,
        "reason": job_verbs.printable(status.reason),
        "command": job_verbs.printable(shlex.join(status.command)),
        "user": status.user,
        "queue": f"{status.queue}, priority {status.priority}" if status.queue else "",
        "workers": _workers(status),
        "hosts": ", ".join(status.hosts),
        "speed": "" if status.steps_per_second is None else f"{status.steps_per_second:.3g} steps/s",
        "restarts": str(status.restarts or ""),
        "submitted": job_verbs.moment(status.created),
        "started": job_verbs.moment(status.started),
        "finished": job_verbs.moment(status.finished),
        "exit code": "" if status.exit_code is None else str(status.exit_code),
    }
    lines = [f"{name + ':':<11}{value}" for name, value in rows.items() if value]
    if status.ranks:
        lines += ["ranks:", *(f"  {rank.rank:>4}  {rank.place}  {rank.state}".rstrip() for rank in status.ranks)]
    if status.events:
        lines += [
            "events:",
            *(f"  {job_verbs.moment(event.at)}  {job_verbs.printable(event.text)}" for event in status.events),
        ]
    return lines


def _workers(status: JobStatus) -> str:
    return f"{status.workers} of {status.wanted}" if status.workers != status.wanted else str(status.workers)
