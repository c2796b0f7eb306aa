"""How the work of a decision about roster and slots grows with the workers."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import msgspec
import pytest

from farandole.control.launcher.slots.decide import decide
from farandole.control.launcher.slots.job_events import (
    FAILED,
    KILLED,
    SUCCEEDED,
    EndedTogether,
    EndJob,
    StopAsked,
    WorkerEnded,
)
from farandole.control.launcher.slots.job_state import JobState, Site, Slot, SlotPolicy
from farandole.control.roster import elastic, fixed
from farandole.control.roster.events import Event as RosterEvent
from farandole.control.roster.events import Expected, Hold, Joined, JoinedTogether, Left, LeftTogether


class Number(int):
    """The number of a worker that counts its comparisons, which happen in code that no profiler sees."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Number.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def success(worker: int, returned: bool = False) -> WorkerEnded:
    return WorkerEnded(worker, SUCCEEDED, "", "exited with code 0", returned)


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


def fixed_job(size: int) -> JobState:
    """Return a job of fixed size whose world has begun, with eight workers on a host."""
    joins = JoinedTogether(tuple(Joined(Number(worker), f"at {worker}") for worker in range(size)))
    state, _, _ = decide(JobState(SlotPolicy(), fixed.FixedState((None,) * size), begun(size).sites), joins, 0.0)
    return state


def without_hold(state: JobState) -> JobState:
    return dataclasses.replace(state, roster=msgspec.structs.replace(state.roster, hold=Hold("")))


def comparisons(state: JobState, *events: RosterEvent | WorkerEnded | EndedTogether) -> int:
    """Return how often the numbers of workers are compared in decisions about events."""
    Number.compared = 0
    for event in events:
        state, _, _ = decide(state, event, 1.0)
    return Number.compared


@pytest.mark.parametrize(
    "events",
    [
        pytest.param((WorkerEnded(3, KILLED, "killed", "was killed by SIGKILL"),), id="loss"),
        pytest.param((Left(3, 1), success(3)), id="goodbye"),
    ],
)
def test_work_of_a_decision_about_one_worker_grows_linearly(events: tuple[RosterEvent | WorkerEnded, ...]) -> None:
    assert comparisons(begun(256), *events) < 3 * comparisons(begun(128), *events)


@pytest.mark.parametrize("job", [begun, fixed_job])
def test_work_of_all_goodbyes_and_ends_grows_linearly_if_they_come_together(job: Callable[[int], JobState]) -> None:
    def work(size: int) -> int:
        goodbyes = tuple(Left(Number(worker), 1) for worker in range(size))
        ends = tuple(success(Number(worker)) for worker in range(size))
        return comparisons(job(size), LeftTogether(goodbyes), EndedTogether(ends))

    assert work(256) < 3 * work(128)


@pytest.mark.parametrize("job", [begun, fixed_job])
@pytest.mark.parametrize("seed", range(30))
def test_workers_that_end_together_leave_the_job_as_workers_that_end_one_by_one(
    job: Callable[[int], JobState], seed: int
) -> None:
    rng, state = random.Random(seed), job(32)
    for worker in rng.sample(range(32), rng.choice((0, 5, 32))):
        state, _, _ = decide(state, Left(worker, 1), 1.0)
    if rng.random() < 0.3:
        state, _, _ = decide(state, StopAsked(1, "Ctrl-C"), 1.0)
    ends = tuple(success(worker, returned=rng.random() < 0.2) for worker in rng.sample(range(34), rng.choice((4, 34))))
    expected, one_by_one = state, []
    for each in ends:
        expected, actions, _ = decide(expected, each, 2.0)
        one_by_one += actions
    state, together, _ = decide(state, EndedTogether(ends), 2.0)
    # Between two ends, a job may have waited for workers that end as well.
    assert without_hold(state) == without_hold(expected)
    assert any(isinstance(each, EndJob) for each in together) == any(isinstance(each, EndJob) for each in one_by_one)


def test_failures_that_come_together_end_a_job_of_fixed_size_because_of_the_first() -> None:
    ends = tuple(WorkerEnded(worker, FAILED, "boom", "exited with code 1", blames=3) for worker in (3, 5))
    state, actions, _ = decide(fixed_job(8), EndedTogether(ends), 1.0)
    assert next(each.because_of for each in actions if isinstance(each, EndJob)) == 3
    assert state.end is not None


def test_hosts_stay_the_same_object_when_a_worker_says_goodbye() -> None:
    """The launcher shows the places of all workers again when they change."""
    state = begun(16)
    after, _, _ = decide(state, Left(3, 1), 1.0)
    assert after.sites is state.sites
    assert dataclasses.replace(after, roster=state.roster) == state


@pytest.mark.parametrize("job", [begun, fixed_job])
def test_other_hosts_stay_the_same_objects_when_a_worker_ends(job: Callable[[int], JobState]) -> None:
    state, _, _ = decide(job(64), Left(3, 1), 1.0)
    after, _, _ = decide(state, success(3), 1.0)
    assert after.sites[0].slots[3].worker is None
    assert all(now is before for now, before in zip(after.sites[1:], state.sites[1:], strict=True))
