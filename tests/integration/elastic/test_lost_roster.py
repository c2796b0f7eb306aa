"""The roster is lost under workers that train, and another one takes its place at the same address."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_worlds import ElasticJob
from step_books import SCRIPT, Books
from waiting import until
from worlds import Nursery

from farandole.control.roster.elastic import Limits

END_SECONDS = 60.0


def run_script(path: str, arguments: list[str]) -> None:
    """Run a script as Python would. Run by a worker."""
    import runpy
    import sys

    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")


class Training:
    """Workers that train, and whose roster comes and goes."""

    def __init__(self, nursery: Nursery, directory: Path) -> None:
        # Only certain signs of a worker's end count, however busy this machine is.
        environment = {"FARANDOLE_GRACE": "20", "FARANDOLE_FAILURE_DEADLINE": "20"}
        self.job = ElasticJob(nursery, Limits(1, 8, timeout=60.0), environment)
        self.books = Books([directory])
        self._directory = directory

    def add(self, count: int) -> None:
        new = self.job.add(count)
        self.job.start(run_script, SCRIPT, ["--books", str(self._directory)], workers=new)

    def finish(self, gone: set[int]) -> None:
        left = [worker for worker in self.job.workers if worker not in gone]
        self.books.await_steps(3, size=len(left))
        self.books.stop()
        self.job.collect(left, END_SECONDS)
        assert self.books.wrongs() == []


@pytest.fixture
def training(nursery: Nursery, tmp_path: Path) -> Iterator[Training]:
    training = Training(nursery, tmp_path)
    yield training
    training.job.close()


def test_world_survives_loss_of_its_roster_and_next_one_forms(training: Training) -> None:
    training.add(3)
    training.books.await_steps(3, size=3)
    training.job.lose_roster()
    training.books.await_steps(10, size=3)
    training.job.find_roster()
    training.job.kill(1)
    training.books.await_steps(3, size=2)
    training.add(1)
    training.finish(gone={1})


def test_world_that_breaks_without_roster_waits_for_next_roster(training: Training) -> None:
    training.add(3)
    training.books.await_steps(3, size=3)
    training.job.lose_roster()
    training.job.kill(0)
    time.sleep(1.0)
    training.job.find_roster()
    training.finish(gone={0})


def test_next_roster_learns_of_ended_workers_before_it_resumes(training: Training) -> None:
    training.add(3)
    training.books.await_steps(3, size=3)
    training.job.lose_roster()
    training.job.kill(0)
    training.job.find_roster(goes_on=False)
    service = training.job.service
    until(lambda: service.known_to_have_ended == {0}, "the next roster has heard whose connections have closed")
    assert service.members_wait
    assert service.world == (0, 1, 2), "it has decided nothing"
    training.job.tell(service.resume)
    training.finish(gone={0})


def test_worker_that_starts_without_roster_finds_next_one(training: Training) -> None:
    training.add(2)
    training.books.await_steps(3, size=2)
    training.job.lose_roster()
    training.add(1)
    time.sleep(0.5)
    training.job.find_roster()
    training.finish(gone=set())


def test_worker_asked_to_leave_without_roster_leaves_at_next_one(training: Training) -> None:
    training.add(3)
    training.books.await_steps(3, size=3)
    training.job.lose_roster()
    training.job.kill(2, signal.SIGTERM)
    training.books.await_steps(5, size=3)
    training.job.find_roster()
    training.books.await_steps(3, size=2)
    assert [each.how for each in training.job.changes[-1].lost] == ["left because it was asked to leave"]
    training.finish(gone={2})
