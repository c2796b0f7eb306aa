"""The rules of membership for workers that are asked to leave, as data in and data out."""

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


def test_a_drained_worker_finishes_its_step_and_leaves() -> None:
    state, actions, _ = decide(world(0, 1, 2), Drained((1,), "its host is needed"))
    assert actions == (Notify((0, 1, 2), 1, 0, 1, "1 worker is to leave"),)
    state = after(state, again(0), again(1))
    _, actions, _ = decide(state, again(2))
    assert announced(actions) == (0, 2)
    assert Refuse(1, "it was asked to leave", evicted=True) in actions


def test_a_drained_worker_stays_until_the_end_of_a_step_that_breaks() -> None:
    state = after(world(0, 1, 2), Drained((1,), "its host is needed"), Finished(2, "was killed"), again(0, open=False))
    _, actions, _ = decide(state, again(1, open=False))
    assert announced(actions) == (0, 1)
    assert actions[-1] == Notify((0, 1), 2, 0, 1, "1 worker is to leave")


def test_a_drained_newcomer_leaves_at_once_or_when_it_comes() -> None:
    state = after(world(0), *newcomer(1), Expected(2, "h2"))
    state, actions, _ = decide(state, Drained((1, 2), "its host is needed"))
    assert actions[0] == Refuse(1, "it was asked to leave: its host is needed", evicted=True)
    assert isinstance(decide(state, Joined(2, "c"))[1][0], Refuse)


def test_when_all_leave_the_first_one_hands_the_state_over() -> None:
    state = after(world(0, 1, most=2), Drained((0, 1), "its host is needed"), *newcomer(2), again(0), again(1))
    assert state.members == (0, 2)
    assert state.notified == (0, 1)
    assert after(state, again(0, 2), again(2, 2)).members == (2,)


def test_the_only_worker_hands_over_to_the_only_newcomer_though_there_is_room_for_one() -> None:
    state = after(world(0, most=1), Drained((0,), "its host is needed"), *newcomer(1), again(0))
    assert state.members == (0, 1)
    assert after(state, again(0, 2), again(1, 2)).members == (1,)


def test_the_last_worker_waits_for_one_that_is_on_its_way() -> None:
    state = after(world(0), Expected(1, "h1"))
    assert decide(state, Drained((0,), "its host is needed"))[1] == ()


def test_the_last_one_stays_while_workers_will_be_started_soon() -> None:
    state = after(world(0, 1), Promised(True), Drained((0, 1), "its host is gone"), again(0), again(1))
    assert state.members == (0,) and state.leaving == {0}
    state = after(state, Expected(2, "h2"), Promised(False))
    state = after(state, Joined(2, "c"), again(0, 2))
    assert state.members == (0, 2)
    assert after(state, again(0, 3), again(2, 3)).members == (2,)


def test_the_last_one_leaves_when_no_worker_will_be_started_after_all() -> None:
    state = after(world(0), Promised(True))
    state, actions, _ = decide(state, Drained((0,), "its host is gone"))
    assert actions == ()
    assert decide(state, Promised(False))[1] == (Notify((0,), 1, 0, 1, "1 worker is to leave"),)


def test_a_job_that_is_made_smaller_lets_the_last_ones_go() -> None:
    state, actions, _ = decide(world(0, 1, 2), Resized(1, 2))
    assert actions == (Notify((0, 1, 2), 1, 0, 1, "1 worker is to leave"),)
    _, actions, _ = decide(after(state, again(0), again(2)), again(1))
    assert announced(actions) == (0, 1)
    assert Refuse(2, "the job was made smaller", evicted=True) in actions
