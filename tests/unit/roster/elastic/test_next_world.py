"""Which workers the first world and the next one have, and when it begins, as data in and data out."""

from __future__ import annotations

from membership import after, again, announced, dead, newcomer, started, unreached, world

from farandole.control.roster.arrivals import START
from farandole.control.roster.elastic import decide
from farandole.control.roster.events import (
    Announce,
    Drained,
    End,
    Evict,
    Evicted,
    Expected,
    Finished,
    Hold,
    HoldOver,
    Joined,
    Lost,
    Refuse,
    Revoke,
    Suspected,
)
from farandole.control.roster.exclusion import workers_to_leave_out
from farandole.control.roster.next_world import FENCE, MAJORITY, MEMBERS

# --- the first world ------------------------------------------------------------------------------------------------


def test_the_first_world_begins_when_all_that_were_started_are_here() -> None:
    state = after(started(0, 1), Joined(1, "b"))
    assert state.hold.kind == START
    state, actions, reason = decide(state, Joined(0, "a"))
    assert isinstance(actions[1], Announce)
    assert (actions[0], actions[1].workers, actions[1].contacts) == (Hold(""), (0, 1), ("a", "b"))
    assert actions[1].previous == (-1, -1)
    assert reason == "worker 0 on h0 joined; generation 1 begins with 2 workers"


def test_the_first_world_begins_without_who_does_not_come_in_time() -> None:
    state, actions, _ = decide(after(started(0, 1, 2), Joined(0, "a"), Joined(2, "c")), HoldOver(START))
    assert announced(actions) == (0, 2)
    assert announced(decide(after(state, Joined(1, "b"), again(0), again(2)), Lost(9))[1]) == ()
    assert after(state, Joined(1, "b"), again(0), again(2)).members == (0, 2, 1)


def test_a_job_ends_when_too_few_come_in_time() -> None:
    _, actions, reason = decide(after(started(0, 1, least=2), Joined(0, "a")), HoldOver(START))
    assert actions == (Refuse(0, reason), Hold(""), End(reason))
    assert reason.startswith("1 of 2 workers did not join within 30 s of the latest arrival: worker 1 on h1. See what ")
    assert "--start-timeout" in reason


def test_nothing_is_waited_for_before_a_worker_calls_init() -> None:
    """Its imports may take minutes: no time runs from the start of a process."""
    state = started(0, 1, least=2)
    assert state.hold == Hold("")
    assert after(state, Joined(0, "a"), Lost(0)).hold == Hold("")


def test_the_time_begins_anew_with_every_worker_that_joins_or_is_started() -> None:
    states = [after(started(0, 1, 2), Joined(0, "a"))]
    states.append(after(states[-1], Joined(1, "b")))
    states.append(after(states[-1], Expected(3, "h3")))
    assert [state.hold.kind for state in states] == [START] * 3
    assert len({state.hold.arrivals for state in states}) == 3


def test_workers_that_are_left_begin_when_others_have_ended_well_without_a_world() -> None:
    """A function need not call init() on all workers."""
    state, actions, _ = decide(after(started(0, 1, 2, least=2), Joined(0, "a"), Finished(2, "exited")), Joined(1, "b"))
    assert announced(actions) == (0, 1)
    assert state.finishing


def test_the_job_ends_at_once_when_too_few_are_left_to_join() -> None:
    state, actions, reason = decide(after(started(0, 1, least=2), Joined(0, "a")), Finished(1, "exited with code 0"))
    why = "only 1 of at least 2 workers called init(); the others have ended with exit code 0"
    assert actions[-1] == End(why) and reason == f"worker 1 on h1 exited with code 0; {why}"
    assert Refuse(0, why) in actions
    # The same in the other order.
    state = after(started(0, 1, least=2), Finished(1, "exited with code 0"))
    assert decide(state, Joined(0, "a"))[1][-1] == End(why)
    # Of a worker that fails, another one is started in its place.
    assert not after(started(0, 1, least=2), Joined(0, "a"), Finished(1, "exited with code 1", True)).ended


def test_nobody_waits_for_more_workers_than_there_is_room_for() -> None:
    state, actions, _ = decide(after(started(0, 1, 2, most=2), Joined(2, "c")), Joined(0, "a"))
    assert announced(actions) == (0, 2)
    assert state.expected == {1}


def test_who_arrives_before_there_is_a_world_waits_for_it() -> None:
    assert announced(decide(started(0), Joined(0, "a", arriving=True))[1]) == (0,)


# --- who may go on --------------------------------------------------------------------------------------------------


def test_the_smaller_part_waits_and_ends() -> None:
    state = after(world(0, 1, 2), Suspected((1, 2), "was lost with its host"), again(0))
    assert state.hold.kind == MAJORITY
    _, actions, reason = decide(state, HoldOver(MAJORITY))
    assert actions == (Refuse(0, reason), Hold(""), End(reason))
    assert "only 1 of 3 workers are heard of" in reason


def test_the_smaller_part_goes_on_when_the_others_are_certain_to_have_ended() -> None:
    state = after(world(0, 1, 2), Suspected((1, 2), "was lost with its host"), again(0))
    assert announced(decide(state, Finished(1, "was lost"))[1]) == (0,)


def test_of_two_halves_the_one_with_the_roster_goes_on() -> None:
    assert announced(decide(after(world(0, 1), Suspected((0,), "was stopped")), again(1))[1]) == (1,)


def test_who_has_joined_does_nothing_more_in_the_old_world_and_need_not_be_waited_for() -> None:
    state = after(world(0, 1, 2, least=2), again(1), again(2), Suspected((1, 2), "was stopped"))
    _, actions, _ = decide(state, again(0))
    assert announced(actions) == ()  # It is one too few.
    assert {action.worker for action in actions if isinstance(action, Refuse)} == {1, 2}


def test_whom_a_join_says_to_have_died_the_others_hear_of() -> None:
    state, actions, _ = decide(world(0, 1, 2, 3), again(0, lost=dead(2)))
    assert actions[0] == Revoke((1, 3), 1, 2, "closed its connections", certain=True)
    # Once is enough; and a worker that has joined has turned away.
    assert not any(isinstance(each, Revoke) for each in decide(state, again(1, lost=dead(2)))[1])
    assert not any(isinstance(each, Revoke) for each in decide(state, Finished(2, "was killed"))[1])


def test_nobody_begins_anew_while_the_only_ones_with_the_state_may_live() -> None:
    state = after(world(0), *newcomer(1), *newcomer(2), again(0))
    assert state.members == (0, 1, 2)
    state = after(state, Suspected((0,), "was stopped"), Joined(1, "", generation=2), Joined(2, "", generation=2))
    assert state.hold.kind == MAJORITY
    assert state.hold.reason == "waits for rank 0 (worker 0 on h0): nobody else has the job's state"
    assert announced(decide(state, Finished(0, "was killed"))[1]) == (1, 2)


def test_who_is_to_leave_stays_while_the_others_with_the_state_are_not_heard_of() -> None:
    state = after(world(0, 1), again(0), again(1), Drained((0,), "its host is needed"))
    state = after(state, again(1, generation=2), Suspected((1,), "was stopped"), again(0, generation=2))
    assert state.hold.kind == MAJORITY
    assert state.hold.reason == "waits for rank 1 (worker 1 on h1): nobody else has the job's state"
    # It hands over to whoever comes.
    assert announced(decide(state, Expected(2, "h2"))[1]) == (0,)


def test_newcomers_begin_anew_only_when_those_that_were_counted_out_have_ended() -> None:
    state = after(world(0), *newcomer(1), Evicted(0, "its host was removed"))
    assert state.hold.kind == FENCE
    _, actions, _ = decide(state, Finished(0, "was killed"))
    assert announced(actions) == (1,)


def test_a_worker_is_counted_out_once() -> None:
    state, actions, _ = decide(world(0, 1), Evicted(1, "its host was removed"))
    assert actions[:2] == (Revoke((0,), 1, 1, "its host was removed", certain=False), Evict(1, "its host was removed"))
    assert decide(state, Evicted(1, "again"))[1] == ()


# --- worlds that cannot be formed -----------------------------------------------------------------------------------


def test_of_two_that_cannot_reach_each_other_the_one_of_higher_rank_is_left_out() -> None:
    state = after(world(0, 1, 2), again(0, lost=unreached(1)), again(1, lost=unreached(0)))
    _, actions, _ = decide(state, again(2))
    assert announced(actions) == (0, 2)
    assert Evict(1, "cannot be connected with others") in actions


def test_one_word_of_a_cut_is_enough_only_if_nothing_else_explains_the_failure() -> None:
    state = after(world(0, 1, 2), again(0, lost=unreached(1)), again(1, lost=unreached(1)))
    assert announced(decide(state, again(2))[1]) == (0, 2)
    # The other one was in that world, and has turned away from it for another reason.
    state = after(world(0, 1, 2), again(0, lost=unreached(1)), again(1))
    assert announced(decide(state, again(2))[1]) == (0, 1, 2)
    state = after(world(0, 1, 2, 3), again(1), again(0, lost=unreached(1)), Finished(3, "was killed"))
    assert announced(decide(state, again(2))[1]) == (0, 1, 2)


def test_who_is_to_leave_is_left_out_rather_than_who_stays() -> None:
    state = after(world(0, 1), Drained((0,), "its host is needed"), again(0, lost=unreached(1)))
    assert announced(decide(state, again(1, lost=unreached(0)))[1]) == (1,)


def test_who_could_not_be_reached_is_waited_for_as_it_may_be_about_to_join() -> None:
    state = after(world(0, 1), again(0, lost=unreached(1)))
    assert (state.suspects, state.hold.kind) == ({}, MEMBERS)
    assert announced(decide(state, Suspected((1,), "was stopped"))[1]) == (0,)


def test_who_holds_the_state_is_left_out_last() -> None:
    cut = [frozenset({0, 1}), frozenset({0, 2})]
    assert workers_to_leave_out([0, 1, 2], {0}, cut) == [2, 1]
    assert workers_to_leave_out([0, 1, 2], {0, 1, 2}, cut) == [0]
    assert workers_to_leave_out([0, 1, 2], (), []) == []
