"""A worker whose engine fails continues with the others, unless it fails again before there is any progress."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from farandole.errors import StartError
from farandole.worker.core import basics
from farandole.worker.core.engine import Cause
from farandole.worker.core.worlds import OwnFailures, accusations

OWN = Cause(1, "NCCL reports an error", certain=False, has_failed=True)


class Engine:
    def __init__(self, cause: Cause | None) -> None:
        self._cause = cause

    def cause(self) -> Cause | None:
        return self._cause


def test_a_second_failure_without_progress_is_the_last() -> None:
    failures = OwnFailures()
    failures.end_world(OWN, 1)
    with pytest.raises(StartError, match=r"failed twice.*The second time: NCCL reports an error"):
        failures.end_world(OWN, 1)


def test_failures_with_progress_between_them_are_survived() -> None:
    failures = OwnFailures()
    for _ in range(3):
        failures.end_world(OWN, 1)
        failures.progress()


def test_steps_that_are_repeated_from_the_last_commit_are_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(own_failures=OwnFailures(), steps=0, on_step=None)
    monkeypatch.setattr(basics, "_default", SimpleNamespace(session=session))
    session.own_failures.end_world(OWN, 1)
    basics.count_step()
    with pytest.raises(StartError, match="failed twice"):
        session.own_failures.end_world(OWN, 1)


@pytest.mark.parametrize(
    ("cause", "rank"),
    [
        pytest.param(OWN, 0, id="of another worker"),
        pytest.param(Cause(1, "fell silent", certain=False), 1, id="no failure"),
        pytest.param(Cause(None, "makes way", certain=True), 1, id="nobody"),
        pytest.param(None, 1, id="no cause"),
    ],
)
def test_other_ends_of_worlds_do_not_count(cause: Cause | None, rank: int) -> None:
    failures = OwnFailures()
    for _ in range(3):
        failures.end_world(cause, rank)
    failures.end_world(OWN, 1)


def test_a_worker_whose_engine_fails_is_not_accused() -> None:
    assert accusations(Engine(OWN)) == []  # type: ignore[arg-type]
    (accused,) = accusations(Engine(Cause(1, "fell silent", certain=False)))  # type: ignore[arg-type]
    assert (accused.rank, accused.certain) == (1, False)
