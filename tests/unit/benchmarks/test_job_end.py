"""The benchmark of a job's end decides on all goodbyes and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from benchmarks.job_end import begun, measure

from farandole.control.launcher.slots.job_events import Action, EndedTogether, Event
from farandole.control.launcher.slots.job_state import JobState
from farandole.control.launcher.supervise.decisions import Decisions
from farandole.control.roster.events import LeftTogether


@pytest.mark.parametrize("elastic", [False, True])
def test_decisions_are_made_for_workers_that_come_in_one_turn(elastic: bool) -> None:
    made = []

    def decided(before: JobState, event: Event, actions: Sequence[Action]) -> None:
        made.append(event)

    decisions = Decisions(begun(16, elastic=elastic), decided, lambda reason: None)
    asyncio.run(asyncio.wait_for(measure(decisions, 16, 8), 60))
    assert [type(event) for event in made] == [LeftTogether] * 2 + [EndedTogether] * 2
    assert decisions.state.end is not None
