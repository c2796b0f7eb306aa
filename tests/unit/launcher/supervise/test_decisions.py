"""When the launcher decides on events, and on which of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from farandole.control.launcher.slots.job_events import (
    KILLED,
    SUCCEEDED,
    Action,
    EndedTogether,
    Event,
    Tick,
    WorkerEnded,
)
from farandole.control.launcher.slots.job_state import JobState, Site, Slot, SlotPolicy
from farandole.control.launcher.supervise.decisions import Decisions
from farandole.control.roster.events import Left, LeftTogether
from farandole.control.roster.fixed import FixedState

ENDED = [WorkerEnded(worker, SUCCEEDED, "", "exited with code 0") for worker in range(4)]


def decided(*turns: Sequence[tuple[Event, bool]]) -> list[list[Event]]:
    """Return the events on which a job has decided after each turn of the loop.

    Args:
        turns: what happens in each turn: events, each with whether its decision may wait.
    """

    async def run() -> list[list[Event]]:
        seen: list[Event] = []

        def carry_out(before: JobState, event: Event, actions: Sequence[Action]) -> None:
            seen.append(event)

        sites = (Site("earth", 4, tuple(Slot(worker, worker) for worker in range(4)), phase="ready"),)
        state = JobState(SlotPolicy(), FixedState((None,) * 4), sites)
        decisions = Decisions(state, carry_out, lambda reason: None)
        after = []
        for turn in turns:
            for event, soon in turn:
                decisions.happened(event, soon=soon)
            after.append(list(seen))
            await asyncio.sleep(0)
        decisions.close()
        return after

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_goodbyes_and_ends_that_may_wait_are_decided_on_together_after_the_turn() -> None:
    goodbyes = [Left(worker, 1) for worker in range(2)]
    events = [(each, True) for each in (*goodbyes, *ENDED)]
    assert decided(events, ()) == [[], [LeftTogether(tuple(goodbyes)), EndedTogether(tuple(ENDED))]]


def test_single_end_that_may_wait_is_decided_on_after_the_turn() -> None:
    assert decided([(ENDED[0], True)], ()) == [[], [ENDED[0]]]


def test_event_that_may_not_wait_is_decided_on_at_once_after_those_before_it() -> None:
    killed = WorkerEnded(3, KILLED, "", "was killed by SIGKILL")
    goodbye = Left(0, 1)
    assert decided([(goodbye, True), (Tick(), False), (ENDED[0], True), (killed, False)], ()) == [
        [goodbye, Tick(), EndedTogether((ENDED[0], killed))],
        [goodbye, Tick(), EndedTogether((ENDED[0], killed))],
    ]
