"""`farandole kill`: kill one worker of a job, or send it another signal, to see how the job copes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from farandole.base.spelling import did_you_mean
from farandole.control.cli.parser import Parser
from farandole.control.launcher.daemon.client_protocol import Done, Kill
from farandole.control.launcher.daemon.client_requests import ask
from farandole.control.launcher.daemon.jobs import jobs_of_this_user
from farandole.control.queue.attempt import is_attempt
from farandole.errors import SpecError

_EPILOG = """\
examples:
  farandole kill calm-otter-17 --rank 2                    SIGKILL, as when a machine fails
  farandole kill calm-otter-17 --rank 2 --signal SIGSTOP   a worker that hangs

It is meant for demonstrations and drills: it asks for no confirmation, and says what will happen to the job. Only the
worker's process gets the signal, on any host. An elastic job always has a name; a job of fixed size has one if
farandole run was given --job NAME; farandole jobs lists them. For an elastic job of the queue, run this on the machine
of the queue's daemon. On Kubernetes delete the worker's pod: kubectl delete pod POD. farandole cancel ends a whole job.
"""


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole kill [JOB] --rank N [--signal NAME]",
        description="Kills one worker of a job that farandole run has started, or sends it another signal.",
        epilog=_EPILOG,
    )
    parser.add_argument("job", nargs="?", metavar="JOB", help="the job's name (default: the only running job)")
    parser.add_argument("--rank", type=int, required=True, metavar="N", help="the worker's current rank")
    parser.add_argument(
        "--signal", default="SIGKILL", metavar="NAME", help="name or number of the signal (default: %(default)s)"
    )


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    number = read_signal(given.signal)
    jobs = jobs_of_this_user(os.environ)
    directory, record = jobs.find(local_name(given.job, [each.name for each, _ in jobs.running()]))
    answer = ask(directory, Kill(given.rank, number))
    assert isinstance(answer, Done)
    print(*(f"farandole: job {record.name}: {line}" for line in answer.lines), sep="\n", file=sys.stderr)
    return 0


def local_name(job: str | None, running: Sequence[str]) -> str | None:
    """Return the name under which a job is registered on this machine: for a job of the queue, the name of its attempt.

    Example:
        >>> local_name("resnet", ["otter", "resnet.2"]), local_name("otter", ["otter", "resnet.2"])
        ('resnet.2', 'otter')
    """
    if job is None or job in running:
        return job
    return next((each for each in running if is_attempt(each, job)), job)


def read_signal(text: str) -> int:
    """Return the number of a signal.

    Raises:
        SpecError: no signal has this name or number.

    Example:
        >>> read_signal("term"), read_signal("SIGKILL"), read_signal("9")
        (15, 9, 9)
    """
    names = {each.name: each for each in signal.Signals}
    upper = text.upper()
    if text.isdecimal() and int(text) in signal.valid_signals() and int(text):
        return int(text)
    found = names.get(upper) or names.get(f"SIG{upper}")
    if found is None:
        hint = did_you_mean(upper, names) or "such as SIGKILL, SIGTERM or SIGSTOP"
        raise SpecError(f"there is no signal {text!r}", hint)
    return int(found)
