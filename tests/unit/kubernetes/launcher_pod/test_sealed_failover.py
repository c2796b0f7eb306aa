"""The failover state of a TrainingJob: only its own launchers read it, and only one of them writes it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from farandole.kubernetes.launcher_pod.state_objects import Changed, NotWritten, SealedFailover
from farandole.launcher.supervise.failover_files import LAUNCHER, ROSTER


class FakeObjects:
    """The failover state in memory, with versions as the API server has them."""

    def __init__(self) -> None:
        self.data: dict[str, str] = {}
        self.version = 1
        self.away = False

    def read_failover(self) -> tuple[dict[str, str], str]:
        if self.away:
            raise NotWritten("away")
        return dict(self.data), str(self.version)

    def write_failover(self, data: Mapping[str, str | None], version: str) -> str:
        if self.away:
            raise NotWritten("away")
        if version != str(self.version):
            raise Changed
        merged = {**self.data, **data}
        self.data = {key: value for key, value in merged.items() if value is not None}
        self.version += 1
        return str(self.version)


def launcher(objects: FakeObjects, pod: str, secret: bytes = b"s" * 32, attempt: int = 0) -> SealedFailover:
    def replaced() -> None:
        raise SystemExit(pod)

    one = SealedFailover(objects, secret, pod, attempt, replaced)  # type: ignore[arg-type]
    one.claim()
    return one


def with_state(objects: FakeObjects) -> SealedFailover:
    one = launcher(objects, "launcher-0")
    assert one.keep(LAUNCHER, b"slots")
    assert one.keep(ROSTER, b"members")
    return one


def test_a_successor_finds_what_was_left_and_the_one_before_can_write_no_more() -> None:
    objects = FakeObjects()
    before = with_state(objects)

    after = launcher(objects, "launcher-1")

    assert after.is_whole()
    assert (after.left(LAUNCHER), after.left(ROSTER)) == (b"slots", b"members")
    with pytest.raises(SystemExit, match="launcher-0"):
        before.keep(LAUNCHER, b"old")
    assert launcher(objects, "launcher-2").left(LAUNCHER) == b"slots"


def test_nobody_without_the_secret_reads_or_forges_it() -> None:
    objects = FakeObjects()
    with_state(objects)
    assert "slots" not in str(objects.data)

    assert not launcher(objects, "launcher-1", secret=b"t" * 32).is_whole()


def test_what_an_earlier_attempt_has_left_is_not_used() -> None:
    objects = FakeObjects()
    with_state(objects)
    assert not launcher(objects, "launcher-1", attempt=1).is_whole()


def test_an_outage_is_told_and_what_was_not_written_is_written_later() -> None:
    objects = FakeObjects()
    one = with_state(objects)
    objects.away = True
    assert not one.keep(LAUNCHER, b"newer")
    objects.away = False
    assert one.retry()
    assert launcher(objects, "launcher-1").left(LAUNCHER) == b"newer"


def test_an_answer_that_was_lost_is_no_other_launcher() -> None:
    objects = FakeObjects()
    one = with_state(objects)
    objects.version += 1  # Its own writing came through, and the answer did not.
    assert one.keep(LAUNCHER, b"newer")
