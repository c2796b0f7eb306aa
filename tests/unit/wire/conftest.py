"""Rosters that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from lost_rosters import SECONDS, Roster

from farandole.base.wire import roster_client
from farandole.control.roster.elastic import Limits


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Roster]]:
    monkeypatch.setattr(roster_client, "ANSWER_SECONDS", SECONDS)
    rosters: list[Roster] = []

    def serve(*arguments: int, **options: Limits) -> Roster:
        rosters.append(Roster(*arguments, **options))
        return rosters[-1]

    yield serve
    for each in rosters:
        each.close()
