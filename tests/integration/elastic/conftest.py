"""Starts elastic jobs of small scripts that use the roster directly, and looks for what is left afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_bench import Bench
from elastic_worlds import ElasticJob
from launched import Job, Training
from step_books import PLAIN_SCRIPT
from worlds import Nursery

# Workers that are in one world after the other, and say so, until there is a file `finish`. Those from the number in a
# file `hold` on do not join as long as it is there.
DANCER = """\
import os, signal, sys, threading, time
from farandole.base.wire.rendezvous import Changed, NotWanted, RendezvousError, Revoked
from farandole.base.wire.roster_client import RosterClient

worker, here = int(os.environ["FARANDOLE_WORKER"]), os.environ["TEST_DIRECTORY"]
secret = bytes.fromhex(os.environ["FARANDOLE_SECRET"])
roster = RosterClient.connect(os.environ["FARANDOLE_ROSTER"], secret, worker=worker, search_timeout=60.0)
turn = threading.Event()
world = None
news = 0  # The latest generation that is to change: it may be heard of before join() has returned it.

def heard(message):
    global news
    if isinstance(message, Changed | Revoked):
        news = max(news, message.generation)
        turn.set()

def enter():
    global world
    generation = 0 if world is None else world.generation
    try:
        world = roster.join(f"c{worker}", None, host="h", generation=generation, trained=True)
    except NotWanted as error:
        print("not wanted:", error, flush=True)
        sys.exit(0)
    print(f"generation {world.generation} rank {world.rank} of {world.size} pid {os.getpid()}", flush=True)

def is_held():
    try:
        return worker >= int(open(os.path.join(here, "hold")).read())
    except FileNotFoundError:
        return False

def dance():
    while not os.path.exists(os.path.join(here, "finish")):
        roster.report_progress(1, 0.0)
        if turn.wait(0.02):
            turn.clear()
            if news >= world.generation:
                enter()
    roster.leave(world.generation)

roster.listen(heard)
while is_held():
    time.sleep(0.01)
enter()
"""


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Return the process that forks workers. It has imported the framework, so no worker waits for that."""
    nursery = Nursery()
    first = nursery.fork({})
    first.send(int, ())
    first.receive(100)
    first.close()
    yield nursery
    nursery.close()


@pytest.fixture
def make_job(nursery: Nursery) -> Iterator[Callable[..., ElasticJob]]:
    """Return a function that makes a job whose workers are forked."""
    from farandole.control.roster.elastic import Limits

    jobs: list[ElasticJob] = []

    def make(environment: dict[str, str] | None = None, fewest: int = 1, most: int = 8) -> ElasticJob:
        jobs.append(ElasticJob(nursery, Limits(fewest, most, timeout=60.0), environment))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Return what starts commands of jobs that outlive their client."""
    bench = Bench(tmp_path)
    yield bench
    bench.clean_up()


@pytest.fixture
def dancer(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a script of a dancer."""

    def write(script: str) -> Path:
        path = tmp_path / "worker.py"
        path.write_text(DANCER + textwrap.dedent(script))
        return path

    return write


@pytest.fixture
def start(
    tmp_path: Path, dancer: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Job]]:
    """Return a function that starts a script of dancers, `dance()` by default, in an elastic job."""
    # Only certain signs count: the machine of a test may be so busy that healthy workers say nothing for a second.
    monkeypatch.setenv("FARANDOLE_FAILURE_DEADLINE", "20")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH")])))
    jobs: list[Job] = []

    def start(
        *options: str,
        script: str = "dance()",
        command: tuple[str, ...] = (),
        program: tuple[str, ...] = ("-m", "farandole"),
    ) -> Job:
        path = dancer(script)
        mark = f"TEST_MARK={tmp_path}-{len(jobs)}"
        with open(tmp_path / "said", "wb") as said:
            process = subprocess.Popen(
                [sys.executable, *program, "run", *options, *(command or (sys.executable, str(path)))],
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TEST_DIRECTORY": str(tmp_path), "TEST_MARK": mark.partition("=")[2]},
                start_new_session=True,
            )
        jobs.append(Job(process, tmp_path, mark))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


SUPPORT = Path(__file__).resolve().parents[2] / "support"

# A training by `plain_style.py`, whose books lie in the test's directory.
TRAINING = """\
import os, runpy, sys, threading, time
os.chdir(os.environ["TEST_DIRECTORY"])
worker = int(os.environ["FARANDOLE_WORKER"])

{before}
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.fixture
def train(tmp_path: Path, start: Callable[..., Job]) -> Callable[..., Training]:
    """Return a function that starts a training in an elastic job; before it, the workers do what they are told."""

    def train(*options: str, before: str = "", program: str = "patient.py") -> Training:
        path = tmp_path / "training.py"
        path.write_text(TRAINING.format(before=textwrap.dedent(before), script=PLAIN_SCRIPT))
        return Training(start(*options, command=(sys.executable, str(path)), program=(str(SUPPORT / program),)))

    return train
