"""Membership when workers are asked to leave: pure decisions."""

from __future__ import annotations

from membership import after, again, announced, newcomer, world

from farandole.control.roster.elastic import decide
from farandole.control.roster.events import (
    Drained,
    Expected,
    Finished,
    Joined,
    Notify,
    Promised,
    Refuse,
    Resized,
)


def test_drained_worker_finishes_its_step_and_leaves() -> None:
    state, actions, _ = decide(world(0, 1, 2), Drained((1,), "its host is needed"))
    assert actions == (Notify((0, 1, 2), 1, 0, 1, "1 worker is to leave"),)
    state = after(state, again(0), again(1))
    _, actions, _ = decide(state, again(2))
    assert announced(actions) == (0, 2)
    assert Refuse(1, "it was asked to leave", evicted=True) in actions


def test_drained_worker_stays_until_the_end_of_a_broken_step() -> None:
    state = after(world(0, 1, 2), Drained((1,), "its host is needed"), Finished(2, "was killed"), again(0, open=False))
    _, actions, _ = decide(state, again(1, open=False))
    assert announced(actions) == (0, 1)
    assert actions[-1] == Notify((0, 1), 2, 0, 1, "1 worker is to leave")


def test_drained_newcomer_is_refused() -> None:
    state = after(world(0), *newcomer(1), Expected(2, "h2"))
    state, actions, _ = decide(state, Drained((1, 2), "its host is needed"))
    assert actions[0] == Refuse(1, "it was asked to leave: its host is needed", evicted=True)
    assert isinstance(decide(state, Joined(2, "c"))[1][0], Refuse)


def test_first_worker_hands_over_the_state_when_all_leave() -> None:
    state = after(world(0, 1, most=2), Drained((0, 1), "its host is needed"), *newcomer(2), again(0), again(1))
    assert state.members == (0, 2)
    assert state.notified == (0, 1)
    assert after(state, again(0, 2), again(2, 2)).members == (2,)


def test_only_worker_hands_over_to_newcomer_beyond_max_size() -> None:
    state = after(world(0, most=1), Drained((0,), "its host is needed"), *newcomer(1), again(0))
    assert state.members == (0, 1)
    assert after(state, again(0, 2), again(1, 2)).members == (1,)


def test_last_worker_waits_for_expected_newcomer() -> None:
    state = after(world(0), Expected(1, "h1"))
    assert decide(state, Drained((0,), "its host is needed"))[1] == ()


def test_last_worker_stays_while_workers_are_promised() -> None:
    state = after(world(0, 1), Promised(True), Drained((0, 1), "its host is gone"), again(0), again(1))
    assert state.members == (0,) and state.leaving == {0}
    state = after(state, Expected(2, "h2"), Promised(False))
    state = after(state, Joined(2, "c"), again(0, 2))
    assert state.members == (0, 2)
    assert after(state, again(0, 3), again(2, 3)).members == (2,)


def test_last_worker_leaves_when_promise_is_withdrawn() -> None:
    state = after(world(0), Promised(True))
    state, actions, _ = decide(state, Drained((0,), "its host is gone"))
    assert actions == ()
    assert decide(state, Promised(False))[1] == (Notify((0,), 1, 0, 1, "1 worker is to leave"),)


def test_smaller_limit_removes_the_highest_ranks() -> None:
    state, actions, _ = decide(world(0, 1, 2), Resized(1, 2))
    assert actions == (Notify((0, 1, 2), 1, 0, 1, "1 worker is to leave"),)
    _, actions, _ = decide(after(state, again(0), again(2)), again(1))
    assert announced(actions) == (0, 1)
    assert Refuse(2, "the job was made smaller", evicted=True) in actions
