"""Decisions of rosters with many workers: joins that come together, and how the work grows with the workers."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import msgspec
import pytest
from tests.support.membership import again, announced, dead, silent, started, unreached, world

from farandole.base.wire.rendezvous import Accused
from farandole.control.roster import elastic, fixed
from farandole.control.roster.decide import RosterState, decide
from farandole.control.roster.events import (
    Action,
    Announce,
    Drained,
    Event,
    Expected,
    Finished,
    FinishedTogether,
    Hold,
    Joined,
    JoinedTogether,
    Left,
    LeftTogether,
    Place,
    Refuse,
    Revoke,
    Suspected,
    find_places,
)
from farandole.control.roster.membership import Limits, missing, missing_at_least


def test_workers_that_join_together_get_the_world_that_they_would_get_one_by_one() -> None:
    joins = tuple(Joined(worker, f"at {worker}") for worker in (2, 0, 1))
    state, actions, reason = elastic.decide(started(0, 1, 2), JoinedTogether(joins))
    assert announced(actions) == (0, 1, 2)
    assert reason.endswith("joined; generation 1 begins with 3 workers")
    assert state.members == world(0, 1, 2).members


def test_survivors_that_join_together_tell_of_the_loss_once() -> None:
    state, actions, _ = elastic.decide(
        world(0, 1, 2, 3), JoinedTogether((again(1, lost=dead(2)), again(0, lost=dead(2))))
    )
    assert [type(action) for action in actions].count(Revoke) == 1
    assert [action.reason for action in actions if isinstance(action, Hold)] == ["waits for rank 3 (worker 3 on h3)"]
    _, actions, _ = elastic.decide(state, JoinedTogether((again(3, lost=dead(2)),)))
    assert announced(actions) == (0, 1, 3)


def test_refused_worker_does_not_keep_others_from_joining_together() -> None:
    joins = (Joined(0, "at 0"), Joined(9, "at 9"), Joined(1, "at 1"))
    _, actions, reason = elastic.decide(started(0, 1), JoinedTogether(joins))
    assert [action.worker for action in actions if isinstance(action, Refuse)] == [9]
    assert announced(actions) == (0, 1)
    assert "worker 9 is refused" in reason


@pytest.mark.parametrize("seed", range(200))
def test_joins_that_come_together_change_a_job_as_the_same_joins_one_by_one(seed: int) -> None:
    state, joins = _random_job_and_joins(random.Random(seed))
    one_by_one: list[Action] = []
    expected = state
    for each in joins:
        expected, actions, _ = elastic._apply(expected, each)
        one_by_one += actions
    together, actions, _ = elastic._apply(state, JoinedTogether(joins))
    assert together == expected
    assert list(together.waiting) == list(expected.waiting)
    assert actions == one_by_one


@pytest.mark.parametrize("seed", range(200))
@pytest.mark.parametrize("kind", [Left, Finished])
def test_workers_that_leave_or_end_together_change_a_job_as_they_do_one_by_one(
    seed: int, kind: type[Left] | type[Finished]
) -> None:
    rng = random.Random(seed)
    state, _ = _random_job_and_joins(rng)
    for worker in rng.sample(range(8), rng.randrange(8)):
        state, _, _ = elastic.decide(state, Left(worker, 1))
    workers = rng.sample(range(12), rng.randrange(1, 12))
    together: LeftTogether | FinishedTogether
    if kind is Left:
        together = LeftTogether(tuple(Left(worker, rng.choice((1, 1, 0))) for worker in workers))
        events: tuple[Event, ...] = together.goodbyes
    else:
        together = FinishedTogether(tuple(Finished(worker, "ended", rng.random() < 0.3) for worker in workers))
        events = together.ends
    expected, one_by_one = state, []
    for each in events:
        expected, actions, _ = elastic._apply(expected, each)
        one_by_one += actions
    state, actions, reason = elastic._apply(state, together)
    assert (state, list(actions)) == (expected, one_by_one)
    assert reason


@pytest.mark.parametrize("here", [(), (0, 3)])
def test_ranks_that_leave_or_end_together_change_a_fixed_job_as_they_do_one_by_one(here: tuple[int, ...]) -> None:
    state = fixed.FixedState((None,) * 4)
    state, _, _ = fixed.decide(state, JoinedTogether(tuple(Joined(rank, "a") for rank in range(4))))
    for rank in here:
        state, _, _ = fixed.decide(state, Joined(rank, "b"))
    goodbyes = (Left(1, 1), Left(2, 0), Left(1, 1))
    ends = (Finished(0, "exited with code 0"), Finished(3, "exited with code 1"), Finished(1, "exited with code 0"))
    expected, one_by_one = state, []
    for event in (*goodbyes, *ends):
        expected, actions, _ = fixed.decide(expected, event)
        one_by_one += [each for each in actions if isinstance(each, Refuse)]
    state, _, _ = fixed.decide(state, LeftTogether(goodbyes))
    state, actions, reason = fixed.decide(state, FinishedTogether(ends))
    assert state == expected
    assert [each for each in actions if isinstance(each, Refuse)] == one_by_one
    assert reason.startswith("ranks 0-1 exited with code 0; rank 3 exited with code 1")


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(lambda: started(*range(50), most=50), id="elastic"),
        pytest.param(lambda: fixed.FixedState((None,) * 50), id="fixed"),
    ],
)
def test_joins_that_come_together_copy_the_collection_of_joins_once(
    state: Callable[[], RosterState], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, replace = state(), msgspec.structs.replace
    copies = 0

    def count(struct: Any, **changes: Any) -> Any:
        nonlocal copies
        copies += "waiting" in changes
        return replace(struct, **changes)

    monkeypatch.setattr(msgspec.structs, "replace", count)
    after, _, _ = decide(before, JoinedTogether(tuple(Joined(worker, f"at {worker}") for worker in range(40))))
    assert len(after.waiting) == 40
    assert copies == 1


@pytest.mark.parametrize("strangers", [0, 1])
def test_fixed_job_decides_once_on_workers_that_join_together(strangers: int) -> None:
    state = fixed.FixedState(places=tuple(Place("here", rank, 3, 0, 1) for rank in range(3)))
    state, actions, reason = fixed.decide(state, JoinedTogether((Joined(2, "c"), Joined(0, "a"))))
    assert [action.reason for action in actions if isinstance(action, Hold)] == ["waits for rank 1 to join"]
    assert reason == "rank 0 joined; 2 of 3 are here"
    last = (*(Joined(7, "x") for _ in range(strangers)), Joined(1, "b"))
    _, actions, reason = fixed.decide(state, JoinedTogether(last))
    assert [action.contacts for action in actions if isinstance(action, Announce)] == [("a", "b", "c")]
    assert ("worker 7 is not one of the 3 workers" in reason) == bool(strangers)


def test_places_count_only_hosts_that_have_a_worker_of_the_local_rank() -> None:
    hosts = ["a", "b", "a", "c", "c", "c"]
    places = find_places([(host, "same") for host in hosts])
    assert [(each.local_rank, each.cross_rank, each.cross_size) for each in places] == [
        (0, 0, 3),
        (0, 1, 3),
        (1, 0, 2),
        (0, 2, 3),
        (1, 1, 2),
        (2, 0, 1),
    ]
    assert [each.hostname for each in places] == ["same", "same (2)", "same", *["same (3)"] * 3]


def test_job_that_waits_for_many_workers_gives_their_number() -> None:
    state = _begun(100)
    state, actions, _ = elastic.decide(state, again(1, lost=dead(0)))
    assert [each.reason for each in actions if isinstance(each, Hold)] == ["waits for at least 98 of 100 workers"]
    _, actions, _ = elastic.decide(state, JoinedTogether(tuple(again(each, lost=dead(0)) for each in range(2, 98))))
    assert [each.reason for each in actions if isinstance(each, Hold)] == [
        "waits for rank 98 (worker 98 on h12), rank 99 (worker 99 on h12)"
    ]


def test_silent_workers_and_newcomers_do_not_make_a_job_wait_for_more_workers_than_are_missing() -> None:
    state = _begun(100)
    state, _, _ = elastic.decide(state, Suspected(tuple(range(10, 30)), "silent"))
    joins = [Joined(each, f"at {each}", generation=1, trained=True) for each in range(30, 70)]
    for event in (Expected(100, "h12"), Joined(100, "at 100"), *joins):
        state, _, _ = elastic.decide(state, event)
        assert missing_at_least(state) <= len(missing(state))
    assert state.hold.reason == "waits for 40 workers (ranks 0-9, 70-99)"


def test_fixed_job_that_waits_for_many_workers_gives_their_number() -> None:
    state, actions, _ = fixed.decide(fixed.FixedState((None,) * 100), Joined(0, "a"))
    assert [each.reason for each in actions if isinstance(each, Hold)] == ["waits for 99 workers to join"]
    _, actions, _ = fixed.decide(state, JoinedTogether(tuple(Joined(each, "b") for each in range(1, 90))))
    assert [each.reason for each in actions if isinstance(each, Hold)] == ["waits for ranks 90-99 to join"]


@pytest.mark.parametrize("together", [1, 32])
def test_work_after_a_loss_grows_linearly(together: int) -> None:
    assert _work_after_a_loss(512, together) < 3 * _work_after_a_loss(256, together)


def test_work_of_goodbyes_grows_linearly() -> None:
    def work(size: int) -> int:
        left: list[Event] = [Left(worker, 1) for worker in range(size)]
        ended: list[Event] = [Finished(worker, "exited with code 0") for worker in range(size)]
        operations, state, _ = _work(_begun(size), left + ended)
        assert state.finished and not state.exiting and not state.hosts
        return operations

    assert work(512) < 3 * work(256)


def _work_after_a_loss(size: int, together: int) -> int:
    """Return the number of Python's operations until the next world, whose workers join so many at a time."""
    lost = (Accused(size // 2, "died", True),)
    joins = [again(worker, lost=lost) for worker in range(size) if worker != size // 2]
    groups = [JoinedTogether(tuple(joins[first : first + together])) for first in range(0, len(joins), together)]
    operations, _, actions = _work(_begun(size), [Finished(size // 2, "was killed", True), *groups])
    assert len(announced(actions)) == size - 1
    return operations


def _work(state: elastic.ElasticState, events: list[Event]) -> tuple[int, elastic.ElasticState, Sequence[Action]]:
    """Return the number of Python's operations of all decisions, and the state and the actions after the last one."""
    operations = 0
    actions: Sequence[Action] = ()

    def count(frame: FrameType, event: str, argument: object) -> Callable[..., object]:
        nonlocal operations
        frame.f_trace_opcodes = True
        operations += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        for event in events:
            state, actions, _ = elastic.decide(state, event)
    finally:
        sys.settrace(before)
    return operations, state, actions


def _begun(size: int) -> elastic.ElasticState:
    """Return a job whose first world has begun, with eight workers on a host."""
    state = elastic.ElasticState(Limits(1, size))
    for worker in range(size):
        state, _, _ = elastic.decide(state, Expected(worker, f"h{worker // 8}"))
    state, actions, _ = elastic.decide(state, JoinedTogether(tuple(Joined(each, f"{each}") for each in range(size))))
    assert len(announced(actions)) == size
    return state


def _random_job_and_joins(rng: random.Random) -> tuple[elastic.ElasticState, tuple[Joined, ...]]:
    """Return a job in whose world anything may have happened, and joins of some of its workers and of others."""
    state = _begun(8)
    events: list[Event] = [
        Expected(8, "h1"),
        Expected(9, "h1"),
        Finished(rng.randrange(8), "was killed", failed=True),
        Suspected((rng.randrange(8),), "silent"),
        Left(rng.randrange(8), 1),
        again(rng.randrange(8), lost=dead(rng.randrange(8))),
        Drained((rng.randrange(8),), "its host is needed"),
    ]
    for happened in rng.sample(events, rng.randrange(len(events))):
        state, _, _ = elastic.decide(state, happened)
    workers = [worker for worker in range(12) if worker not in state.waiting]
    kinds = [lambda rank: (), dead, silent, unreached, lambda rank: (Accused(rank, "left", False, left=True),)]
    joins = [
        Joined(
            worker,
            f"at {worker}",
            generation=rng.choice((0, 1)),
            trained=rng.random() < 0.5,
            accused=rng.choice(kinds)(rng.randrange(8)),
            arriving=rng.random() < 0.2,
        )
        for worker in rng.sample(workers, rng.randrange(1, len(workers)))
    ]
    return state, tuple(joins)
