"""Faults on one machine, at every phase of a training: no step is lost, and no sample is lost or used twice."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_worlds import ElasticJob
from step_books import SCRIPT, Books
from waiting import until
from worlds import Nursery, WorkerFailed

from farandole.base.wire.rendezvous import RendezvousError
from farandole.base.wire.roster_client import RosterClient
from farandole.control.roster.elastic import Limits

END_SECONDS = 60.0


def run_script(path: str, arguments: list[str]) -> None:
    """Run a script as Python would. Run by a worker."""
    import runpy
    import sys

    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")


class Training:
    """Workers that train by `steps_style.py`, on this machine."""

    def __init__(self, nursery: Nursery, directory: Path) -> None:
        self.job = ElasticJob(nursery, Limits(1, 8, timeout=60.0), {"FARANDOLE_GRACE": "20"})
        self.books = Books([directory])
        self._directory = directory

    def add(self, count: int, *options: str) -> list[int]:
        """Start workers."""
        new = self.job.add(count)
        self.job.start(run_script, SCRIPT, ["--books", str(self._directory), *options], workers=new)
        return new

    def finish(self, dead: set[int]) -> None:
        """Let the training end; all have ended in good order then but for the dead, and all that was seen is right."""
        for worker in dead:
            until(lambda worker=worker: not self.lives(worker), f"worker {worker} is dead", END_SECONDS)
        self.books.await_steps(3, size=len(self.job.workers) - len(dead))
        self.books.stop()
        self.job.collect([worker for worker in self.job.workers if worker not in dead], END_SECONDS)
        assert self.books.wrongs() == []

    def lives(self, worker: int) -> bool:
        """Return whether a worker has not ended."""
        return self.state(worker) not in "ZX"

    def state(self, worker: int) -> str:
        """Return the state of a worker's process, a letter of proc(5)."""
        stat = Path(f"/proc/{self.job.workers[worker].pid}/stat")
        try:
            return stat.read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return "X"


@pytest.fixture
def training(nursery: Nursery, tmp_path: Path) -> Iterator[Training]:
    training = Training(nursery, tmp_path)
    yield training
    training.job.close()


# The others may be in the step before the one in which a worker is killed, or have just begun it. So a worker that is
# to be killed when they go on without that one, has it due from the step before on: until then nobody enters another
# world.
BEFORE_THAT = 2


def faults(phase: str, *workers: int, step: int = 3) -> list[str]:
    return [f"--fault={phase}:{worker}:{step}" for worker in workers]


# --- kill -9 ---------------------------------------------------------------------------------------------------------

STEP_PHASES = (
    "step",
    "backward",
    "allreduce",
    "before-cast",
    "after-cast",
    "in-reduce",
    "after-reduce",
    "after-count",
    "before-commit",
)


@pytest.mark.parametrize("phase", STEP_PHASES)
def test_workers_are_killed_in_turn_in_a_phase_of_a_step(training: Training, phase: str) -> None:
    """Rank 0 twice, and one in the middle."""
    training.add(4, *faults(phase, 2, step=3), *faults(phase, 0, step=6), *faults(phase, 1, step=9))
    training.finish(dead={0, 1, 2})


@pytest.mark.parametrize("phase", ["backward", "allreduce", "before-cast", "after-reduce", "after-count"])
def test_all_but_one_worker_are_killed_in_same_phase(training: Training, phase: str) -> None:
    training.add(4, *faults(phase, 0, 1, 3))
    training.finish(dead={0, 1, 3})


@pytest.mark.parametrize("phase", ["before-join", "in-join", "after-join"])
def test_worker_is_killed_while_first_world_forms(training: Training, phase: str) -> None:
    training.add(3, *faults(phase, 0, step=0))
    training.finish(dead={0})


@pytest.mark.parametrize("phase", ["before-join", "in-join", "after-join", "before-transfer", "in-transfer"])
def test_newcomer_is_killed_while_it_joins(training: Training, phase: str) -> None:
    training.add(2, "--ballast=32")
    training.books.await_steps(3)
    training.add(1, "--ballast=32", *faults(phase, 2, step=0))
    until(lambda: not training.lives(2), "the newcomer is dead")
    training.finish(dead={2})


def test_first_of_two_newcomers_is_killed_once_it_has_a_place(training: Training) -> None:
    training.add(1)
    training.books.await_steps(4)
    added_at = time.monotonic()
    training.add(2, *faults("after-join", 1, step=0))
    until(lambda: len(training.job.changes) > 1, "there is another world", END_SECONDS)
    since = time.monotonic() - added_at
    training.finish(dead={1})
    assert training.job.seconds[1] < since, "it is the time without a world, not the age of the last one"


@pytest.mark.parametrize("phase", ["before-transfer", "in-transfer", "after-transfer"])
def test_source_is_killed_while_it_sends_state(training: Training, phase: str) -> None:
    training.add(3, "--ballast=32", *faults(phase, 0, step=3))
    training.books.await_steps(6)
    training.add(1, "--ballast=32")
    training.finish(dead={0})


def test_large_state_arrives_intact_though_a_source_is_killed(training: Training) -> None:
    """Several tensors, hundreds of MB in all, to a newcomer, while one of three sources dies."""
    ballast = [f"--ballast={megabytes}" for megabytes in (210.3, 0, 33.7, 0.01)]
    training.add(3, *ballast, *faults("in-transfer", 1, step=3))
    training.books.await_steps(6, size=3)
    training.add(1, *ballast)
    training.finish(dead={1})  # Not 0, with whose state the others have begun.


def test_only_source_is_killed_while_it_sends_state(training: Training) -> None:
    """No worker has the state any more: the job ends with this error, and does not start again from another state."""
    training.add(1, "--ballast=32", *faults("in-transfer", 0))
    training.books.await_steps(6)
    training.add(1, "--ballast=32")
    with pytest.raises(WorkerFailed, match="all workers that held the state of the training are lost"):
        training.job.collect([1], END_SECONDS)


def test_survivors_are_killed_during_recovery(training: Training) -> None:
    """Each survivor of a kill joins the next world; one dies right before, one while it waits, one right after."""
    training.add(
        5,
        *faults("step", 4, step=3),
        *faults("before-join", 0, step=BEFORE_THAT),
        *faults("in-join", 1, step=BEFORE_THAT),
        *faults("after-join", 2, step=BEFORE_THAT),
    )
    training.finish(dead={0, 1, 2, 4})


# A forming that is not broken off would last longer than any of these tests.
NEVER_OUT_OF_TIME = "--form-seconds=3600"


@pytest.mark.parametrize("phase", ["before-form", "in-form"])
@pytest.mark.parametrize("worker", [0, 2])
def test_first_world_is_formed_again_at_once_after_a_kill(training: Training, worker: int, phase: str) -> None:
    training.add(4, NEVER_OUT_OF_TIME, *faults(phase, worker, step=0))
    training.finish(dead={worker})


@pytest.mark.parametrize("phase", ["before-form", "in-form"])
def test_killed_newcomer_does_not_delay_forming(training: Training, phase: str) -> None:
    training.add(3, NEVER_OUT_OF_TIME)
    training.books.await_steps(3)
    training.add(2, NEVER_OUT_OF_TIME, *faults(phase, 3, step=0))
    training.finish(dead={3})


@pytest.mark.parametrize("phase", ["before-form", "in-form"])
@pytest.mark.parametrize("survivor", [0, 1])
def test_killed_survivor_does_not_delay_forming(training: Training, survivor: int, phase: str) -> None:
    training.add(4, NEVER_OUT_OF_TIME, *faults("step", 3, step=3), *faults(phase, survivor, step=BEFORE_THAT))
    training.finish(dead={survivor, 3})


def test_excluded_survivor_does_not_delay_forming(training: Training) -> None:
    """It is stopped when the world is announced, and so forms nothing, and stays silent."""
    training.add(4, NEVER_OUT_OF_TIME, *faults("step", 3, step=3), f"--fault=before-form:1:{BEFORE_THAT}:stop")
    until(lambda: training.state(1) == "T", "it is stopped", END_SECONDS)
    training.job.tell(training.job.service.suspect, (1,), "was stopped")
    training.books.await_steps(3, size=2)
    training.job.kill(1, signal.SIGKILL)
    training.finish(dead={1, 3})


# --- SIGSTOP ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("worker", [0, 1])
def test_stopped_worker_that_continues_later_is_excluded(training: Training, worker: int) -> None:
    training.add(3)
    training.books.await_steps(5, size=3)
    training.job.kill(worker, signal.SIGSTOP)
    # As long as it runs, it would join the next world like the others, and live on whatever is said of it.
    until(lambda: training.state(worker) == "T", "it is stopped", END_SECONDS)
    training.job.tell(training.job.service.suspect, (worker,), "was stopped")
    training.books.await_steps(5, size=2)
    seen = len(training.books.steps_of(worker))
    training.job.kill(worker, signal.SIGCONT)
    until(lambda: not training.lives(worker), "it has ended")
    assert len(training.books.steps_of(worker)) <= seen + 1
    training.finish(dead={worker})


# --- strangers at the roster -----------------------------------------------------------------------------------------


def test_unauthenticated_clients_and_broken_frames_do_not_disturb_training(training: Training) -> None:
    """Noise, the secret of another job, and one who knows the secret and sends what no worker would."""
    training.add(2)
    training.books.await_steps(5, size=2)
    host, _, port = training.job.address.rpartition(":")
    for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 10_000):
        with socket.create_connection((host, int(port)), 10) as stranger:
            stranger.sendall(noise)
    with pytest.raises(RendezvousError):
        RosterClient.connect(training.job.address, bytes(32), worker=0)
    for broken in (b"", b"\xc1", b"\x81\xa4type\xa4nope", bytes(100_000)):
        with RosterClient.connect(training.job.address, training.job.secret, worker=77) as client:
            client._channel.send(broken)
    training.books.await_steps(10, size=2)
    assert training.job.changes[-1].generation == 1
    training.finish(dead=set())


# --- a full disk -----------------------------------------------------------------------------------------------------


def test_training_continues_with_full_disk(small_disk: Path, training: Training) -> None:
    training.add(2, f"--checkpoints={small_disk}", "--ballast=1")
    until(lambda: list(small_disk.glob("step-*/manifest.json")), "there is a checkpoint", END_SECONDS)
    hoard = small_disk / "hoard"
    fill(hoard)
    training.books.await_steps(12, size=2)
    kept = {path.name for path in small_disk.glob("step-*")}
    assert kept
    hoard.unlink()
    until(lambda: {path.name for path in small_disk.glob("step-*")} - kept, "there is a newer one", END_SECONDS)
    training.finish(dead=set())


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
