"""The failure that a job's outcome reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from farandole.control.launcher.failure.record import WorkerRecord
from farandole.control.launcher.slots.job_state import End
from farandole.control.launcher.supervise.outcome import TOGETHER_SECONDS, _by_rank, _to_blame

LATER = TOGETHER_SECONDS + 1


def failed(worker: int, at: float, code: int = 1) -> WorkerRecord:
    return WorkerRecord(worker, exit_code=code, exit_time=at)


def test_survived_failures_are_not_reported() -> None:
    records = [failed(0, 10), failed(1, 10 + LATER), failed(2, 11 + LATER), failed(3, 12 + LATER, 0)]
    blamed = _to_blame(End(20 + LATER, 5.0, "nobody holds the state"), (3,), records)
    assert blamed is records[1]


def test_workers_ended_by_launcher_are_not_blamed() -> None:
    records = [failed(0, 10), failed(1, 21 + LATER, -15)]
    assert _to_blame(End(20 + LATER, 5.0, "timed out"), (1,), records) is records[0]


def test_job_without_failures_blames_no_worker() -> None:
    assert _to_blame(End(20, 5.0, "timed out"), (), [failed(0, 10, 0)]) is None


def test_failures_of_workers_that_were_replaced_before_there_was_a_world_are_not_reported() -> None:
    records = [failed(0, 10, 0), failed(1, 11), failed(2, 12, 0), failed(3, 13)]
    assert _to_blame(End(20, 5.0), (), records, least=2) is records[3], "no worker is started any more"
    assert _to_blame(End(20, 5.0), (), records[:3], least=2) is None


def workers(**ends: int) -> Any:
    """Return workers by their exit codes; the names are their numbers after a `w`."""
    numbers = {int(name[1:]): code for name, code in ends.items()}
    by_number = {number: SimpleNamespace(record=failed(number, 10, code)) for number, code in numbers.items()}
    return SimpleNamespace(by_number=by_number)


def test_results_are_those_of_the_latest_world_by_rank_and_then_of_others_that_finished() -> None:
    results = {number: b"%d" % number for number in (0, 1, 2, 3, 5)}
    # 0 has failed: what it sent back is an exception. 4 is in the world, and has ended before it sent anything.
    ended = workers(w0=1, w1=0, w2=0, w3=0, w4=0, w5=0)
    assert _by_rank(results, ended, (3, 1, 4)) == (b"3", b"1", None, b"2", b"5")


def test_results_do_not_depend_on_a_world() -> None:
    assert _by_rank({1: b"b", 0: b"a"}, workers(w0=0, w1=0), ()) == (b"a", b"b")
