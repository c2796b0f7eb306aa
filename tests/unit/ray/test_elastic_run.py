"""What the driver of an elastic job does while it runs, without Ray."""

from __future__ import annotations

import itertools
import pickle
import queue
import types
from concurrent.futures import Future
from typing import Any

import pytest

from farandole.control.launcher.supervise.outcome import JobOutcome
from farandole.ray import elastic_run


class Flood(queue.SimpleQueue[bytes]):
    """Always has another value, until the job has ended."""

    def __init__(self, outcome: Future[JobOutcome]) -> None:
        self._outcome, self._values = outcome, itertools.count()
        self.given = 0

    def get(self, block: bool = True, timeout: float | None = None) -> bytes:
        self.given += 1
        return pickle.dumps(self.given)

    def empty(self) -> bool:
        return self._outcome.done()


def job_of(outcome: Future[JobOutcome]) -> Any:
    return types.SimpleNamespace(outcome=outcome, stop=lambda: outcome.cancel())


def test_hosts_are_tended_although_values_never_cease_to_come() -> None:
    outcome: Future[JobOutcome] = Future()
    ended, values, seen = JobOutcome(0), Flood(outcome), list[int]()
    hosts: Any = types.SimpleNamespace(tend=lambda: outcome.set_result(ended))
    assert elastic_run._wait(job_of(outcome), hosts, values, [seen.append]) is ended
    assert seen == list(range(1, values.given + 1)) and seen


def test_values_that_came_before_the_end_are_passed_on() -> None:
    outcome: Future[JobOutcome] = Future()
    outcome.set_result(JobOutcome(0))
    values: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    for value in range(3):
        values.put(pickle.dumps(value))
    seen: list[int] = []
    elastic_run._wait(job_of(outcome), types.SimpleNamespace(), values, [seen.append])  # type: ignore[arg-type]
    assert seen == [0, 1, 2]


def test_callback_that_fails_ends_the_job() -> None:
    outcome: Future[JobOutcome] = Future()
    stopped: list[bool] = []
    job: Any = types.SimpleNamespace(
        outcome=outcome, stop=lambda: (stopped.append(True), outcome.set_result(JobOutcome(1)))
    )

    def fails(value: Any) -> None:
        raise ValueError(value)

    with pytest.raises(ValueError, match="1"):
        elastic_run._wait(job, types.SimpleNamespace(), Flood(outcome), [fails])  # type: ignore[arg-type]
    assert outcome.done()
