"""`farandole submit`: submit a job to a queue or cluster, and follow it."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from farandole.control.cli import job_verbs
from farandole.control.cli.parser import Parser
from farandole.control.jobs.errors import BadSpec, JobError
from farandole.control.jobs.places import connect
from farandole.control.jobs.service import JobService
from farandole.control.jobs.spec import JobSpec, from_dict, parse_workers
from farandole.control.jobs.spec_file import read_spec
from farandole.control.jobs.status import JobState, JobStatus, to_dict
from farandole.control.launcher.job.spec import read_exports

_POLL_SECONDS = 0.5

_EPILOG = """\
examples:
  farandole submit -np 4 -- python train.py --epochs 90
  farandole submit -np 2:8 --priority 5 --queue vision -- python train.py
  farandole submit -f job.yaml
  farandole submit --detach --on kubernetes --image me/train -np 8 -- python train.py

It follows the job until it ends, and returns its exit code. Ctrl-C stops only this command; it prints how to come back.
Options come before the command and override the file of -f. All keys of such a file: docs/how-to/queue.md.
"""

_SHORT = {
    "job": ("-np", "-f", "--name", "-x", "--workdir", "--image", "--checkpoint"),
    "queueing": ("--on", "--queue", "--priority"),
    "this command": ("--dry-run", "--detach", "--json", "--help-all"),
}


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole submit [-np N|MIN:MAX] [-f FILE] [options] [--] command [arguments]",
        description="Submits a job: it runs when its turn comes, and does not need this terminal.",
        epilog=_EPILOG,
    )
    job_verbs.add_options(parser)
    add = parser.add_argument
    add("-np", "--num-proc", dest="workers", metavar="N|MIN:MAX", help="number of workers; MIN:MAX for an elastic job")
    add("--min-np", type=int, metavar="N", help="minimum number of workers, as in MIN:MAX")
    add("--max-np", type=int, metavar="N", help="maximum number of workers, as in MIN:MAX")
    add("-f", "--file", type=Path, metavar="FILE", help="file that describes the job, as YAML or JSON")
    add("--name", metavar="NAME", help="the job's name (default: generated)")
    add("--priority", type=int, metavar="N", help="priority; higher runs earlier (default: 0)")
    add("--queue", metavar="QUEUE", help="the queue to submit to")
    add("--suspension", metavar="HOW", help="what to do when the job must give up its slots: signal, requeue or never")
    add("--signal", metavar="NAME", help="signal that asks the job to save its state (default: SIGTERM)")
    add("--grace", type=float, metavar="S", help="seconds that the job has to do so (default: 30)")
    add("--checkpoint", metavar="PATH", help="where the job keeps its checkpoints")
    add("--duration", type=float, metavar="S", help="expected duration in seconds")
    add("--deadline", type=float, metavar="S", help="seconds from now by which the job should be done")
    add("--retries", type=int, metavar="N", help="how many times a failed job is started again")
    add(
        "--application",
        metavar="NAME",
        help="name of the model or program; jobs with the same name are expected to behave alike",
    )
    add("--image", metavar="IMAGE", help="container image, for places that run jobs in containers")
    add("--workdir", metavar="DIR", help="working directory (default: this directory, or the image's)")
    add("-x", dest="exports", action="append", default=[], metavar="NAME[=VALUE]", help="set a variable of the workers")
    add(
        "--resource", action="append", default=[], metavar="NAME=N", help="resources of each worker, such as memory=8Gi"
    )
    add("--detach", action="store_true", help="print the job's name and return without waiting for it")
    add(
        "--dry-run",
        action="store_true",
        help="print what would be submitted, such as the script for Slurm, and submit nothing",
    )
    add("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    parser.shorten(_SHORT)


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    spec = read(given)
    place, service = connect(given.on, os.environ)
    if given.dry_run:
        print(service.preview(spec), end="")
        return 0
    name = service.submit(spec)
    if given.json:
        job_verbs.print_json(to_dict(service.status(name)))
        return 0
    if given.detach:
        print(name)
        return 0
    print(f"farandole: job {name} is submitted to {place}; Ctrl-C does not end it", file=sys.stderr)
    try:
        return _show(service, connect(place, os.environ)[1], name)
    except KeyboardInterrupt:
        on = f" --on {place}" if given.on else ""
        print(
            f"\nfarandole: job {name} keeps running; farandole logs -f {name}{on} shows it again, "
            f"farandole cancel {name}{on} ends it",
            file=sys.stderr,
        )
        return 130


def read(given: argparse.Namespace) -> JobSpec:
    """Return the job that the command line and its file describe."""
    changes = _changes(given)
    if given.file is not None:
        return read_spec(given.file, changes)
    return from_dict(changes)


def _changes(given: argparse.Namespace) -> dict[str, Any]:
    """Return the keys given on the command line."""
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command and given.file is None:
        raise BadSpec("the command is missing", "farandole submit -np 2 -- python train.py")
    same = ("name", "priority", "queue", "suspension", "signal", "grace", "checkpoint", "duration", "deadline")
    keys = {key: getattr(given, key) for key in (*same, "retries", "application", "image")}
    keys["workingDirectory"] = given.workdir or (None if given.image or given.file else os.getcwd())
    keys["command"] = command or None
    keys["workers"] = _workers(given)
    keys["environment"] = read_exports(given.exports, os.environ) or None
    keys["resources"] = _pairs(given.resource) or None
    return {key: value for key, value in keys.items() if value is not None}


def _workers(given: argparse.Namespace) -> Any:
    if given.min_np is None and given.max_np is None:
        return given.workers
    numbers = {"min": given.min_np, "max": given.max_np}
    if given.workers is not None:
        numbers["replicas"] = parse_workers(given.workers).replicas
    return {key: value for key, value in numbers.items() if value is not None}


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadSpec(f"--resource {text}: not a valid resource", "write --resource memory=8Gi")
        pairs[name] = value
    return pairs


def _show(service: JobService, other: JobService, name: str) -> int:
    """Follow a job until it ends, and return its exit code.

    Args:
        service: the service that is asked for the job's state, in a separate thread.
        other: a second connection to the same place, for the job's output.
    """
    news = _News(service, name)
    news.start()
    try:
        for line in other.logs(name, follow=True):
            print(line, end="", flush=True)
    finally:
        news.stop()
    status = service.status(name)
    news.report(status)
    return _exit_code(status)


def _exit_code(status: JobStatus) -> int:
    if status.exit_code is not None:
        return status.exit_code
    return {JobState.SUCCEEDED: 0, JobState.CANCELLED: 143}.get(status.state, 1)


class _News(threading.Thread):
    """Thread that prints each change of a job's state to standard error."""

    def __init__(self, service: JobService, name: str) -> None:
        super().__init__(daemon=True)
        self._service = service
        self._name = name
        self._told = ""
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                self.report(self._service.status(self._name))
            except JobError:
                time.sleep(_POLL_SECONDS)  # If it lasts, the thread that reads the log reports it.
            self._over.wait(_POLL_SECONDS)

    def report(self, status: JobStatus) -> None:
        said = f"farandole: {status.name} {job_verbs.sentence(status)}"
        if said != self._told:
            self._told = said
            print(said, file=sys.stderr, flush=True)

    def stop(self) -> None:
        self._over.set()
        self.join(10)
