"""`farandole submit`: hand a job to whatever runs jobs, and show it."""

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
from farandole.control.jobs.status import JobState, JobStatus
from farandole.control.launcher.job.spec import read_exports

_POLL_SECONDS = 0.5

_EPILOG = """\
examples:
  farandole submit -np 4 -- python train.py --epochs 90
  farandole submit -np 2:8 --priority 5 --queue vision -- python train.py
  farandole submit -f job.yaml
  farandole submit --detach --on kubernetes --image me/train -np 8 -- python train.py

It shows the job until it is over, and ends with its exit code. Ctrl-C only leaves the job; it says how to come back.
Options stand before the command. What they say wins over the file of -f. All keys of such a file: docs/how-to/queue.md.
"""

_SHORT = {
    "job": ("-np", "-f", "--name", "-x", "--workdir", "--image", "--checkpoint"),
    "its turn": ("--on", "--queue", "--priority"),
    "this command": ("--dry-run", "--detach", "--json", "--help-all"),
}


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole submit [-np N|MIN:MAX] [-f FILE] [options] [--] command [arguments]",
        description="Submits a job: it runs when it is its turn, and goes on without this terminal.",
        epilog=_EPILOG,
    )
    job_verbs.add_options(parser)
    add = parser.add_argument
    add("-np", "--num-proc", dest="workers", metavar="N|MIN:MAX", help="workers; MIN:MAX of a job that is elastic")
    add("--min-np", type=int, metavar="N", help="the least it can go on with, as in MIN:MAX")
    add("--max-np", type=int, metavar="N", help="the most it can use, as in MIN:MAX")
    add("-f", "--file", type=Path, metavar="FILE", help="the job, as YAML or JSON")
    add("--name", metavar="NAME", help="of the job (default: one is made up)")
    add("--priority", type=int, metavar="N", help="the higher, the earlier (default: 0)")
    add("--queue", metavar="QUEUE", help="which queue it belongs to")
    add("--suspension", metavar="HOW", help="signal, requeue or never: what happens when it has to give its slots back")
    add("--signal", metavar="NAME", help="what tells it to save itself (default: SIGTERM)")
    add("--grace", type=float, metavar="S", help="seconds it has for that (default: 30)")
    add("--checkpoint", metavar="PATH", help="where it keeps checkpoints")
    add("--duration", type=float, metavar="S", help="seconds that you think it takes")
    add("--deadline", type=float, metavar="S", help="seconds from now in which it should be done")
    add("--retries", type=int, metavar="N", help="how often it is started again when it fails")
    add("--application", metavar="NAME", help="what is trained; jobs of one application resemble each other")
    add("--image", metavar="IMAGE", help="container image, where jobs run in containers")
    add("--workdir", metavar="DIR", help="where it runs (default: this folder, or the image's)")
    add("-x", dest="exports", action="append", default=[], metavar="NAME[=VALUE]", help="set a variable of the workers")
    add("--resource", action="append", default=[], metavar="NAME=N", help="of each worker, such as memory=8Gi")
    add("--detach", action="store_true", help="return when the job is submitted; print its name")
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
        job_verbs.print_json(job_verbs.as_plain(service.status(name)))
        return 0
    if given.detach:
        print(name)
        return 0
    print(f"farandole: job {name} is submitted to {place}; Ctrl-C leaves it alone", file=sys.stderr)
    try:
        return _show(service, connect(place, os.environ)[1], name)
    except KeyboardInterrupt:
        on = f" --on {place}" if given.on else ""
        print(
            f"\nfarandole: job {name} goes on; farandole logs -f {name}{on} shows it again, "
            f"farandole cancel {name}{on} ends it",
            file=sys.stderr,
        )
        return 130


def read(given: argparse.Namespace) -> JobSpec:
    """Return the job that the command line, and the file that it names, describe."""
    changes = _changes(given)
    if given.file is not None:
        return read_spec(given.file, changes)
    return from_dict(changes)


def _changes(given: argparse.Namespace) -> dict[str, Any]:
    """Return the keys that the command line gives."""
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command and given.file is None:
        raise BadSpec("there is no command to run", "farandole submit -np 2 -- python train.py")
    same = ("name", "priority", "queue", "suspension", "signal", "grace", "checkpoint", "duration", "deadline")
    keys = {key: getattr(given, key) for key in (*same, "retries", "application", "image")}
    keys["workingDirectory"] = given.workdir or (None if given.image or given.file else os.getcwd())
    keys["command"] = command or None
    keys["workers"] = _workers(given)
    keys["environment"] = _exports(given.exports) or None
    keys["resources"] = _pairs(given.resource) or None
    return {key: value for key, value in keys.items() if value is not None}


def _workers(given: argparse.Namespace) -> Any:
    if given.min_np is None and given.max_np is None:
        return given.workers
    numbers = {"min": given.min_np, "max": given.max_np}
    if given.workers is not None:
        numbers["replicas"] = parse_workers(given.workers).replicas
    return {key: value for key, value in numbers.items() if value is not None}


def _exports(texts: list[str]) -> dict[str, str]:
    return read_exports(texts, os.environ)


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadSpec(f"--resource {text}: this is no resource", "such as --resource memory=8Gi")
        pairs[name] = value
    return pairs


def _show(service: JobService, other: JobService, name: str) -> int:
    """Show a job until it is over, and return its exit code.

    Args:
        service: tells how it is, in a thread of its own.
        other: the same place, for what the job prints.
    """
    news = _News(service, name)
    news.start()
    try:
        for line in other.logs(name, follow=True):
            print(line, end="", flush=True)
    finally:
        news.stop()
    status = service.status(name)
    news.tell(status)
    return _exit_code(status)


def _exit_code(status: JobStatus) -> int:
    if status.exit_code is not None:
        return status.exit_code
    return {JobState.SUCCEEDED: 0, JobState.CANCELLED: 143}.get(status.state, 1)


class _News(threading.Thread):
    """Tells on standard error whenever a job is another way than before."""

    def __init__(self, service: JobService, name: str) -> None:
        super().__init__(daemon=True)
        self._service = service
        self._name = name
        self._told = ""
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                self.tell(self._service.status(self._name))
            except JobError:
                time.sleep(_POLL_SECONDS)  # The thread that reads the log says it, if it lasts.
            self._over.wait(_POLL_SECONDS)

    def tell(self, status: JobStatus) -> None:
        said = f"farandole: {status.name} {job_verbs.sentence(status)}"
        if said != self._told:
            self._told = said
            print(said, file=sys.stderr, flush=True)

    def stop(self) -> None:
        self._over.set()
        self.join(10)
