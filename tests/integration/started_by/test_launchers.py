"""The launchers of others: their workers find their place, and each other, by themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.integration.started_by.conftest import Starter

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
# What any launcher starts in the same way: NumPy is imported soonest. torchrun starts a training of its framework.
KMEANS = [str(EXAMPLES / "numpy_kmeans.py"), "--points", "3000", "--clusters", "8", "--rounds", "6"]
DIGITS = [str(EXAMPLES / "digits.py"), "--epochs", "1", "--warmup-epochs", "1", "--limit", "200"]


def test_workers_find_their_place(starter: Starter, launcher: tuple[str, ...]) -> None:
    workers = starter.start(*launcher, "3", sys.executable, starter.script()).workers()
    assert [worker["rank"] for worker in workers] == [0, 1, 2]
    assert [worker["local"] for worker in workers] == [[0, 3], [1, 3], [2, 3]]
    assert {(worker["size"], worker["hosts"], worker["mean"], *worker["cross"]) for worker in workers} == {
        (3, 1, 2.0, 0, 1)
    }
    # The launcher has told that all of them are on this host, so nothing listens on a network.
    assert {worker["listen"] for worker in workers} == {"127.0.0.1"}
    assert starter.meeting_files() == []


def test_the_example_runs_unchanged(starter: Starter, launcher: tuple[str, ...]) -> None:
    example = DIGITS if "torch.distributed.run" in launcher else KMEANS
    code, out, err = starter.start(*launcher, "2", sys.executable, *example).finish(110)
    assert code == 0, out + err
    assert "bit-identical on 2 worker(s)" in out


def test_one_worker_needs_nobody(starter: Starter, launcher: tuple[str, ...]) -> None:
    (worker,) = starter.start(*launcher, "1", sys.executable, starter.script()).workers()
    assert (worker["rank"], worker["size"]) == (0, 1)
    assert list(starter.home.glob(".c*/farandole")) == []


def test_two_jobs_of_one_user_at_once_do_not_mix(starter: Starter, launcher: tuple[str, ...]) -> None:
    script = starter.script()
    jobs = [starter.start(*launcher, "2", sys.executable, script, TEST_NAME=name) for name in "ab"]
    for job, name in zip(jobs, "ab", strict=True):
        workers = job.workers()
        assert [(worker["rank"], worker["size"], worker["mark"]) for worker in workers] == [(0, 2, name), (1, 2, name)]


def test_worlds_can_be_left_and_entered_again(starter: Starter, launcher: tuple[str, ...]) -> None:
    script = starter.script("for _ in range(3):\n    work()\n    basics.shutdown()\n")
    workers = starter.start(*launcher, "2", sys.executable, script).workers()
    assert [worker["rank"] for worker in workers] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_ends_the_job_and_leaves_nothing(starter: Starter, launcher: tuple[str, ...], rank: int) -> None:
    script = starter.script(f"work()\nif basics.rank() == {rank}:\n    raise ValueError('boom')\nbuffers.barrier()\n")
    code, out, err = starter.start(*launcher, "2", sys.executable, script).finish()
    assert code != 0
    assert "ValueError: boom" in out + err


def test_a_key_that_tells_jobs_apart_can_be_given(starter: Starter, launcher: tuple[str, ...]) -> None:
    command = (*launcher, "2", sys.executable, starter.script())
    assert len(starter.start(*command, FARANDOLE_JOB_KEY="mine").workers()) == 2


def test_without_a_shared_home_they_meet_where_they_are_told(
    starter: Starter, launcher: tuple[str, ...], free_port: int
) -> None:
    command = (*launcher, "2", sys.executable, starter.script())
    told = {"FARANDOLE_ROSTER": f"127.0.0.1:{free_port}", "FARANDOLE_SECRET": "0f" * 32}
    assert len(starter.start(*command, HOME="/nonexistent", **told).workers()) == 2
