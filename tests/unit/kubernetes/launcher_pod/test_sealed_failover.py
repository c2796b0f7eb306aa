"""The failover state of a TrainingJob: only its own launchers read it, and only the current one writes it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from farandole.control.kubernetes.launcher_pod.__main__ import insist
from farandole.control.kubernetes.launcher_pod.state_objects import (
    LONGEST_WAIT_SECONDS,
    Changed,
    NotWritten,
    SealedFailover,
)
from farandole.control.launcher.supervise.failover_files import LAUNCHER, STATE


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

    one = SealedFailover(objects, lambda: secret, pod, attempt, replaced)  # type: ignore[arg-type]
    one.claim()
    return one


def with_state(objects: FakeObjects) -> SealedFailover:
    one = launcher(objects, "launcher-0")
    one.write({LAUNCHER: b"slots"})
    one.write({STATE: b"members"})
    return one


def test_successor_reads_state_and_fences_previous_launcher() -> None:
    objects = FakeObjects()
    before = with_state(objects)

    after = launcher(objects, "launcher-1")

    assert after.is_whole()
    assert (after.left(LAUNCHER), after.left(STATE)) == (b"slots", b"members")
    with pytest.raises(SystemExit, match="launcher-0"):
        before.write({LAUNCHER: b"old"})
    assert launcher(objects, "launcher-2").left(LAUNCHER) == b"slots"


def test_state_cannot_be_read_or_forged_without_secret() -> None:
    objects = FakeObjects()
    with_state(objects)
    assert "slots" not in str(objects.data)

    assert not launcher(objects, "launcher-1", secret=b"t" * 32).is_whole()


def test_new_secret_seals_existing_state() -> None:
    objects, secrets = FakeObjects(), [b"s" * 32]
    one = SealedFailover(objects, lambda: secrets[0], "launcher-0", 0, lambda: None)  # type: ignore[arg-type]
    one.claim()
    one.write({LAUNCHER: b"slots"})
    secrets[0] = b"t" * 32
    one.write({STATE: b"members"})

    found = launcher(objects, "launcher-1", b"t" * 32)

    assert (found.left(LAUNCHER), found.left(STATE)) == (b"slots", b"members")


def test_deleted_state_is_written_again_completely() -> None:
    objects = FakeObjects()
    one = with_state(objects)
    objects.data, objects.version = {}, objects.version + 7
    one.write({STATE: b"other members"})

    found = launcher(objects, "launcher-1")

    assert (found.left(LAUNCHER), found.left(STATE)) == (b"slots", b"other members")


def test_state_of_earlier_attempt_is_ignored() -> None:
    objects = FakeObjects()
    with_state(objects)
    assert not launcher(objects, "launcher-1", attempt=1).is_whole()


def test_launcher_waits_for_api_server_with_timeout() -> None:
    objects = FakeObjects()
    objects.away = True
    now = [0.0]
    one = SealedFailover(objects, lambda: b"s" * 32, "launcher-0", 0, lambda: None)  # type: ignore[arg-type]
    with pytest.raises(NotWritten, match="away"):
        one.claim(lambda seconds: now.__setitem__(0, now[0] + seconds), lambda: now[0])
    assert LONGEST_WAIT_SECONDS <= now[0] <= LONGEST_WAIT_SECONDS + 2


def test_outcome_is_reported_after_outage_or_given_up_after_timeout() -> None:
    now = [0.0]

    def away_until(end: float) -> str:
        if now[0] < end:
            raise NotWritten("away")
        return "told"

    def rest(seconds: float) -> None:
        now[0] += seconds

    assert insist(lambda: away_until(300.0), "the outcome waits", rest, lambda: now[0]) == "told"
    with pytest.raises(NotWritten):
        insist(lambda: away_until(1e9), "the outcome waits", rest, lambda: now[0])


def test_lost_answer_is_not_mistaken_for_another_launcher() -> None:
    objects = FakeObjects()
    one = with_state(objects)
    objects.version += 1  # Its own writing came through, and the answer did not.
    one.write({LAUNCHER: b"newer"})
    assert launcher(objects, "launcher-1").left(LAUNCHER) == b"newer"
