"""`farandole.testing`: functions of a test are called in real workers, whose errors come back as they are."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farandole.numpy as hvd
from farandole.errors import InvalidRequestError, JobFailed
from farandole.testing import World, world


class OwnError(Exception):
    """An error of the test's own module."""


def begin() -> int:
    hvd.init()
    return os.getpid()


def summed(value: float) -> float:
    return float(hvd.allreduce(np.array(value * hvd.rank()), op=hvd.Sum))


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def workers() -> Iterator[World]:
    """A world of three, in which farandole is initialized."""
    with world(3) as started:
        started.run(begin)
        yield started


@pytest.mark.parametrize("name", ["skip", "fail", "xfail"])
def test_outcomes_of_pytest_are_those_of_the_test(name: str) -> None:
    """pytest does not know them by another class of the same name."""
    outcome = getattr(pytest, name).Exception
    with world(1) as workers, pytest.raises(outcome, match="there is no such device") as caught:
        workers.run(lambda: getattr(pytest, name)("there is no such device"))
    assert type(caught.value) is outcome


def test_results_and_errors_come_back_as_they_are(workers: World) -> None:
    def train() -> None:
        if hvd.rank() == 1:
            raise OwnError("no data")
        summed(1.0)  # Waits for rank 1 in vain.

    assert workers.run(summed, 0.5) == [1.5, 1.5, 1.5]
    assert workers.run(lambda: hvd.rank()) == [0, 1, 2]
    with pytest.raises(OwnError, match="no data") as caught:
        workers.run(train)
    assert "on rank 1 of 3" in str(caught.value.__cause__) and "in train" in str(caught.value.__cause__)
    with pytest.raises(InvalidRequestError, match="not after an error"):
        workers.run(summed, 1.0)


def test_a_worker_that_is_killed_is_reported(workers: World) -> None:
    def train() -> None:
        if hvd.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        summed(1.0)

    with pytest.raises(JobFailed, match="killed by SIGKILL") as caught:
        workers.run(train)
    assert caught.value.rank == 2


def test_a_call_that_takes_too_long_ends_and_leaves_no_process(capfd: pytest.CaptureFixture[str]) -> None:
    with world(2) as workers:
        pids = workers.run(begin)
        workers.timeout = 1.0
        with pytest.raises(TimeoutError, match=r"rank 0(, 1)? of 2 did not return within 1 s"):
            workers.run(lambda: summed(1.0) if hvd.rank() == 0 else None)
        assert not any(map(is_there, pids))
    assert " in summed" in capfd.readouterr().err, "the rank that waits prints where"


@world(2, env={"GREETING": "hello"})
def test_on_all_ranks(tmp_path: Path) -> None:
    hvd.init()
    (tmp_path / f"rank.{hvd.rank()}").write_text(os.environ["GREETING"])
    hvd.barrier()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank.0", "rank.1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"size": 0}, "0 is not a valid number"),
        ({"size": 1, "timeout": 0}, "above 0"),
        ({"size": 1, "timeout": None}, "a timeout of None seconds is not valid"),
        ({"size": 1, "env": {"A": None}}, r"env\['A'\] is a NoneType"),
        ({"size": 1, "env": ["A"]}, "env is a list, not a mapping of variables"),
    ],
)
def test_worlds_that_cannot_be(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        world(**arguments)
