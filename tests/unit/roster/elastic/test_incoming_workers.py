"""The rules of membership for workers that come into a job that trains, as data in and data out."""

from __future__ import annotations

from membership import after, again, announced, newcomer, world

from farandole.control.roster.elastic import decide
from farandole.control.roster.events import (
    Announce,
    Evict,
    Expected,
    Finished,
    Joined,
    Lost,
    Notify,
    Refuse,
    Show,
    Suspected,
)


def test_a_newcomer_looks_prepares_itself_and_comes_in_at_the_end_of_a_step() -> None:
    state, actions, _ = decide(after(world(0, 1), Expected(2, "h2")), Joined(2, "c", arriving=True))
    assert actions == (Show(2, 0),)
    assert state.expected == {2}
    state, actions, reason = decide(state, Joined(2, "c"))
    assert actions == (Notify((0, 1), 1, 1, 0, "1 worker waits to join"),)
    assert reason == "worker 2 on h2 joined; 1 worker waits to join"
    _, actions, _ = decide(after(state, again(1)), again(0))
    assert isinstance(actions[-1], Announce)
    assert (actions[-1].workers, actions[-1].previous) == ((0, 1, 2), (0, 1, -1))


def test_a_newcomer_that_goes_away_again_is_taken_back() -> None:
    state = after(world(0, 1), *newcomer(2))
    assert decide(state, Finished(2, "was killed"))[1] == (
        Notify((0, 1), 1, 0, 0, "nobody waits to join or is to leave any more"),
    )


def test_nobody_comes_in_in_the_middle_of_a_step_and_is_told_of_right_after() -> None:
    state = after(world(0, 1, 2), *newcomer(3), Finished(2, "was killed"), again(0, open=False))
    state, actions, reason = decide(state, again(1, open=False))
    assert announced(actions) == (0, 1)
    assert actions[-1] == Notify((0, 1), 2, 1, 0, "1 worker waits to join")
    assert reason.endswith("generation 2 begins with 2 workers; 1 worker waits to join")


def test_newcomers_that_wait_make_up_for_the_minimum_in_the_middle_of_a_step() -> None:
    state = after(world(0, 1, least=2), *newcomer(2), Finished(1, "was killed"))
    assert announced(decide(state, again(0, open=False))[1]) == (0,)


def test_who_has_no_state_yet_comes_in_behind_those_who_have() -> None:
    state = after(world(0), *newcomer(1), again(0), *newcomer(2))
    state = after(state, Joined(1, "", generation=2))
    assert announced(decide(state, again(0, 2))[1]) == (0, 1, 2)
    assert announced(decide(state, again(0, 2, open=False))[1]) == (0,)


def test_newcomers_come_in_by_number_and_keep_their_order_when_all_before_them_leave() -> None:
    """A worker is told its number as HOROVOD_RANK when it starts: of two, the lower one has the lower rank."""
    state = after(world(0, 1), Expected(2, "h2"), Expected(3, "h3"), Joined(3, "at 3"), Joined(2, "at 2"))
    assert state.newcomers() == [2, 3]
    state = after(state, again(0))
    state, actions, _ = decide(state, again(1))
    assert announced(actions) == (0, 1, 2, 3)
    state = after(state, Finished(0, "was killed"), Finished(1, "was killed"), again(3, 2))
    assert announced(decide(state, again(2, 2))[1]) == (2, 3)


def test_those_for_whom_there_is_no_room_wait() -> None:
    state, actions, _ = decide(after(world(0, 1, most=2), *newcomer(2)), Lost(9))
    assert (actions, state.newcomers()) == ((), [2])
    state = after(state, Finished(0, "was killed"))
    assert announced(decide(state, again(1))[1]) == (1, 2)


def test_a_newcomer_that_is_stopped_is_counted_out_as_it_would_hold_up_everybody() -> None:
    _, actions, _ = decide(after(world(0), *newcomer(1)), Suspected((1,), "was stopped"))
    assert actions[:2] == (Refuse(1, "it was counted out: was stopped", evicted=True), Evict(1, "was stopped"))
