"""Rosters that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from lost_rosters import Roster

from farandole.control.roster.elastic import Limits


@pytest.fixture
def serve() -> Iterator[Callable[..., Roster]]:
    rosters: list[Roster] = []

    def serve(*arguments: int, **options: Limits) -> Roster:
        rosters.append(Roster(*arguments, **options))
        return rosters[-1]

    yield serve
    for each in rosters:
        each.close()
