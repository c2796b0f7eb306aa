"""How the work of a decision about roster and slots grows with the workers."""

from __future__ import annotations

import dataclasses

import pytest

from farandole.control.launcher.slots.decide import decide
from farandole.control.launcher.slots.job_events import KILLED, SUCCEEDED, WorkerEnded
from farandole.control.launcher.slots.job_state import JobState, Site, Slot, SlotPolicy
from farandole.control.roster import elastic
from farandole.control.roster.events import Event as RosterEvent
from farandole.control.roster.events import Expected, Joined, JoinedTogether, Left


class Number(int):
    """The number of a worker that counts its comparisons, which happen in code that no profiler sees."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Number.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def begun(size: int) -> JobState:
    """Return a job whose first world has begun, with eight workers on a host."""
    sites = tuple(
        Site(f"h{host}", 8, tuple(Slot(index, Number(8 * host + index)) for index in range(8)), phase="ready")
        for host in range(size // 8)
    )
    roster = elastic.ElasticState(elastic.Limits(1, size))
    for worker in range(size):
        roster, _, _ = elastic.decide(roster, Expected(Number(worker), f"h{worker // 8}"))
    joins = JoinedTogether(tuple(Joined(Number(worker), f"at {worker}") for worker in range(size)))
    state, _, _ = decide(JobState(SlotPolicy(), roster, sites, next_worker=size), joins, 0.0)
    assert len(state.world) == size
    return state


def comparisons(state: JobState, *events: RosterEvent | WorkerEnded) -> int:
    """Return how often the numbers of workers are compared in decisions about events."""
    Number.compared = 0
    for event in events:
        state, _, _ = decide(state, event, 1.0)
    return Number.compared


@pytest.mark.parametrize(
    "events",
    [
        pytest.param((WorkerEnded(3, KILLED, "killed", "was killed by SIGKILL"),), id="loss"),
        pytest.param((Left(3, 1), WorkerEnded(3, SUCCEEDED, "", "exited with code 0")), id="goodbye"),
    ],
)
def test_work_of_a_decision_about_one_worker_grows_linearly(events: tuple[RosterEvent | WorkerEnded, ...]) -> None:
    assert comparisons(begun(256), *events) < 3 * comparisons(begun(128), *events)


def test_hosts_stay_the_same_object_when_a_worker_says_goodbye() -> None:
    """The launcher shows the places of all workers again when they change."""
    state = begun(16)
    after, _, _ = decide(state, Left(3, 1), 1.0)
    assert after.sites is state.sites
    assert dataclasses.replace(after, roster=state.roster) == state


def test_other_hosts_stay_the_same_objects_when_a_worker_ends() -> None:
    """A job whose workers all end at about the same time makes a decision about each."""
    state, _, _ = decide(begun(64), Left(3, 1), 1.0)
    after, _, _ = decide(state, WorkerEnded(3, SUCCEEDED, "", "exited with code 0"), 1.0)
    assert after.sites[0].slots[3].worker is None
    assert all(now is before for now, before in zip(after.sites[1:], state.sites[1:], strict=True))
