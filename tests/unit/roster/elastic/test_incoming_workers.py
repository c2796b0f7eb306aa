"""Membership when workers join a job that trains: pure decisions."""

from __future__ import annotations

from membership import after, again, announced, newcomer, started, stopped, world

from farandole.control.roster.elastic import decide
from farandole.control.roster.events import (
    Announce,
    Continued,
    Evict,
    Expected,
    Finished,
    HoldOver,
    Joined,
    Lost,
    Notify,
    Refuse,
    Show,
)
from farandole.control.roster.next_world import STOPPED


def test_newcomer_arrives_prepares_and_enters_at_end_of_step() -> None:
    state, actions, _ = decide(after(world(0, 1), Expected(2, "h2")), Joined(2, "c", arriving=True))
    assert actions == (Show(2, 0),)
    assert state.expected == {2}
    state, actions, reason = decide(state, Joined(2, "c"))
    assert actions == (Notify((0, 1), 1, 1, 0, "1 worker waits to join"),)
    assert reason == "worker 2 on h2 joined; 1 worker waits to join"
    _, actions, _ = decide(after(state, again(1)), again(0))
    assert isinstance(actions[-1], Announce)
    assert (actions[-1].workers, actions[-1].previous) == ((0, 1, 2), (0, 1, -1))


def test_notice_of_newcomer_is_withdrawn_when_it_ends() -> None:
    state = after(world(0, 1), *newcomer(2))
    assert decide(state, Finished(2, "was killed"))[1] == (
        Notify((0, 1), 1, 0, 0, "no workers wait to join or are to leave any more"),
    )


def test_newcomer_is_announced_right_after_a_broken_step() -> None:
    state = after(world(0, 1, 2), *newcomer(3), Finished(2, "was killed"), again(0, open=False))
    state, actions, reason = decide(state, again(1, open=False))
    assert announced(actions) == (0, 1)
    assert actions[-1] == Notify((0, 1), 2, 1, 0, "1 worker waits to join")
    assert reason.endswith("generation 2 begins with 2 workers; 1 worker waits to join")


def test_waiting_newcomers_count_towards_minimum_in_the_middle_of_a_step() -> None:
    state = after(world(0, 1, least=2), *newcomer(2), Finished(1, "was killed"))
    assert announced(decide(state, again(0, open=False))[1]) == (0,)


def test_workers_without_state_rank_behind_holders() -> None:
    state = after(world(0), *newcomer(1), again(0), *newcomer(2))
    state = after(state, Joined(1, "", generation=2))
    assert announced(decide(state, again(0, 2))[1]) == (0, 1, 2)
    assert announced(decide(state, again(0, 2, open=False))[1]) == (0,)


def test_newcomers_rank_by_number_and_keep_their_order() -> None:
    """A worker starts with its number as HOROVOD_RANK, so the lower number must get the lower rank."""
    state = after(world(0, 1), Expected(2, "h2"), Expected(3, "h3"), Joined(3, "at 3"), Joined(2, "at 2"))
    assert state.newcomers() == [2, 3]
    state = after(state, again(0))
    state, actions, _ = decide(state, again(1))
    assert announced(actions) == (0, 1, 2, 3)
    state = after(state, Finished(0, "was killed"), Finished(1, "was killed"), again(3, 2))
    assert announced(decide(state, again(2, 2))[1]) == (2, 3)


def test_newcomers_beyond_max_size_wait() -> None:
    state, actions, _ = decide(after(world(0, 1, most=2), *newcomer(2)), Lost(9))
    assert (actions, state.newcomers()) == ((), [2])
    state = after(state, Finished(0, "was killed"))
    assert announced(decide(state, again(1))[1]) == (1, 2)


def test_stopped_newcomer_is_excluded() -> None:
    _, actions, _ = decide(after(world(0), *newcomer(1)), stopped(1))
    assert actions[:2] == (Refuse(1, "it was excluded: was stopped", evicted=True), Evict(1, "was stopped"))


def test_newcomer_whose_join_is_read_after_it_was_stopped_does_not_begin_alone() -> None:
    state = after(started(0), stopped(0), Joined(0, "a"))
    assert (state.generation, state.hold.kind) == (0, STOPPED)
    assert announced(decide(state, Continued(0))[1]) == (0,)
    _, actions, _ = decide(state, HoldOver(STOPPED))
    assert actions[:2] == (Refuse(0, "it was excluded: was stopped", evicted=True), Evict(0, "was stopped"))
