"""Whose failure a job is said to have ended with."""

from __future__ import annotations

from farandole.launcher.failure.record import WorkerRecord
from farandole.launcher.supervise.outcome import TOGETHER_SECONDS, Verdict, _to_blame

LATER = TOGETHER_SECONDS + 1


def failed(worker: int, at: float, code: int = 1) -> WorkerRecord:
    return WorkerRecord(worker, exit_code=code, exit_time=at)


def test_what_the_job_has_got_over_is_not_what_it_ended_with() -> None:
    records = [failed(0, 10), failed(1, 10 + LATER), failed(2, 11 + LATER), failed(3, 12 + LATER, 0)]
    blamed = _to_blame(Verdict("nobody holds the state"), (3,), records, 20 + LATER)
    assert blamed is records[1]


def test_who_was_ended_with_the_job_is_not_to_blame() -> None:
    records = [failed(0, 10), failed(1, 21 + LATER, -15)]
    assert _to_blame(Verdict("timed out"), (1,), records, 20 + LATER) is records[0]


def test_a_job_without_failures_has_nobody_to_blame() -> None:
    assert _to_blame(Verdict("timed out"), (), [failed(0, 10, 0)], 20) is None
