"""Scalars for trackers, written by the function that the program has for them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from farandole.observe.trackers import Reporter
from farandole.worker.core import basics


class Played:
    """A session whose counts the test sets."""

    def __init__(self) -> None:
        self.steps = 0
        self.world = SimpleNamespace(size=2, generation=1)
        self.bytes, self.blocked = 0, 0.0
        self.engine = SimpleNamespace(
            stats=lambda: {"operations": {"allreduce": {"bytes": self.bytes}}, "blocked_seconds": self.blocked}
        )


def test_scalars_are_those_of_the_time_since_the_last_report(monkeypatch: pytest.MonkeyPatch) -> None:
    session, now, written = Played(), [0.0], []
    monkeypatch.setattr(basics, "current", lambda: session)
    reporter = Reporter(lambda *scalar: written.append(scalar), 10.0, lambda: now[0])
    assert not reporter.report(0)
    now[0], session.steps = 9.0, 50
    assert not reporter.report(50), "it is not time yet"
    now[0], session.steps, session.bytes, session.blocked = 20.0, 100, 4000, 5.0
    assert reporter.report(100)
    assert written == [
        ("farandole/steps_per_second", 5.0, 100),
        ("farandole/waiting_ratio", 0.25, 100),
        ("farandole/bytes_per_second", 200.0, 100),
        ("farandole/world_size", 2, 100),
        ("farandole/generation", 1, 100),
    ]


def test_a_new_world_counts_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    session, now, written = Played(), [0.0], []
    session.bytes = 1000
    monkeypatch.setattr(basics, "current", lambda: session)
    reporter = Reporter(lambda *scalar: written.append(scalar), 10.0, lambda: now[0])
    reporter.report(0)
    now[0], session.world, session.bytes = 10.0, SimpleNamespace(size=1, generation=2), 5
    assert not reporter.report(1)
    now[0], session.bytes = 20.0, 105
    assert reporter.report(2)
    assert ("farandole/bytes_per_second", 10.0, 2) in written
