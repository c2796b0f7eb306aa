"""Members and beginning of the first world and the next one: pure decisions."""

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


def test_first_world_begins_when_all_started_workers_have_joined() -> None:
    state = after(started(0, 1), Joined(1, "b"))
    assert state.hold.kind == START
    state, actions, reason = decide(state, Joined(0, "a"))
    assert isinstance(actions[1], Announce)
    assert (actions[0], actions[1].workers, actions[1].contacts) == (Hold(""), (0, 1), ("a", "b"))
    assert actions[1].previous == (-1, -1)
    assert reason == "worker 0 on h0 joined; generation 1 begins with 2 workers"


def test_first_world_begins_without_late_workers() -> None:
    state, actions, _ = decide(after(started(0, 1, 2), Joined(0, "a"), Joined(2, "c")), HoldOver(START))
    assert announced(actions) == (0, 2)
    assert announced(decide(after(state, Joined(1, "b"), again(0), again(2)), Lost(9))[1]) == ()
    assert after(state, Joined(1, "b"), again(0), again(2)).members == (0, 2, 1)


def test_job_ends_when_too_few_join_in_time() -> None:
    _, actions, reason = decide(after(started(0, 1, least=2), Joined(0, "a")), HoldOver(START))
    assert actions == (Refuse(0, reason), Hold(""), End(reason))
    assert reason.startswith(
        "1 of 2 workers did not join within 30 s of the latest arrival: worker 1 on h1. Check their "
    )
    assert "--start-timeout" in reason


def test_no_hold_before_a_worker_calls_init() -> None:
    """Imports may take minutes: no timer starts with the process."""
    state = started(0, 1, least=2)
    assert state.hold == Hold("")
    assert after(state, Joined(0, "a"), Lost(0)).hold == Hold("")


def test_hold_restarts_with_every_join_and_every_started_worker() -> None:
    states = [after(started(0, 1, 2), Joined(0, "a"))]
    states.append(after(states[-1], Joined(1, "b")))
    states.append(after(states[-1], Expected(3, "h3")))
    assert [state.hold.kind for state in states] == [START] * 3
    assert len({state.hold.arrivals for state in states}) == 3


def test_first_world_begins_without_workers_that_exited_with_0() -> None:
    """A function need not call init() on all workers."""
    state, actions, _ = decide(after(started(0, 1, 2, least=2), Joined(0, "a"), Finished(2, "exited")), Joined(1, "b"))
    assert announced(actions) == (0, 1)
    assert state.finishing


def test_job_ends_at_once_when_too_few_can_join() -> None:
    state, actions, reason = decide(after(started(0, 1, least=2), Joined(0, "a")), Finished(1, "exited with code 0"))
    why = "only 1 of at least 2 workers called init(); the others have ended with exit code 0"
    assert actions[-1] == End(why) and reason == f"worker 1 on h1 exited with code 0; {why}"
    assert Refuse(0, why) in actions
    # The same in the other order.
    state = after(started(0, 1, least=2), Finished(1, "exited with code 0"))
    assert decide(state, Joined(0, "a"))[1][-1] == End(why)
    # A worker that fails is replaced by another one.
    assert not after(started(0, 1, least=2), Joined(0, "a"), Finished(1, "exited with code 1", True)).ended


def test_first_world_begins_at_max_size() -> None:
    state, actions, _ = decide(after(started(0, 1, 2, most=2), Joined(2, "c")), Joined(0, "a"))
    assert announced(actions) == (0, 2)
    assert state.expected == {1}


def test_arrival_before_the_first_world_counts_as_join() -> None:
    assert announced(decide(started(0), Joined(0, "a", arriving=True))[1]) == (0,)


# --- who may go on --------------------------------------------------------------------------------------------------


def test_smaller_part_waits_and_ends() -> None:
    state = after(world(0, 1, 2), Suspected((1, 2), "was lost with its host"), again(0))
    assert state.hold.kind == MAJORITY
    _, actions, reason = decide(state, HoldOver(MAJORITY))
    assert actions == (Refuse(0, reason), Hold(""), End(reason))
    assert "only 1 of 3 workers respond" in reason


def test_smaller_part_continues_when_the_others_have_certainly_ended() -> None:
    state = after(world(0, 1, 2), Suspected((1, 2), "was lost with its host"), again(0))
    assert announced(decide(state, Finished(1, "was lost"))[1]) == (0,)


def test_half_with_the_roster_continues() -> None:
    assert announced(decide(after(world(0, 1), Suspected((0,), "was stopped")), again(1))[1]) == (1,)


def test_silent_worker_that_has_joined_is_not_waited_for() -> None:
    state = after(world(0, 1, 2, least=2), again(1), again(2), Suspected((1, 2), "was stopped"))
    _, actions, _ = decide(state, again(0))
    assert announced(actions) == ()  # It is one too few.
    assert {action.worker for action in actions if isinstance(action, Refuse)} == {1, 2}


def test_death_reported_by_a_join_is_passed_on_once() -> None:
    state, actions, _ = decide(world(0, 1, 2, 3), again(0, lost=dead(2)))
    assert actions[0] == Revoke((1, 3), 1, 2, "closed its connections", certain=True)
    # Once is enough; and a worker that has joined has abandoned the world.
    assert not any(isinstance(each, Revoke) for each in decide(state, again(1, lost=dead(2)))[1])
    assert not any(isinstance(each, Revoke) for each in decide(state, Finished(2, "was killed"))[1])


def test_world_waits_while_the_only_holders_may_be_alive() -> None:
    state = after(world(0), *newcomer(1), *newcomer(2), again(0))
    assert state.members == (0, 1, 2)
    state = after(state, Suspected((0,), "was stopped"), Joined(1, "", generation=2), Joined(2, "", generation=2))
    assert state.hold.kind == MAJORITY
    assert state.hold.reason == "waits for rank 0 (worker 0 on h0): no other worker has the job's state"
    assert announced(decide(state, Finished(0, "was killed"))[1]) == (1, 2)


def test_leaving_holder_stays_while_the_other_holders_are_silent() -> None:
    state = after(world(0, 1), again(0), again(1), Drained((0,), "its host is needed"))
    state = after(state, again(1, generation=2), Suspected((1,), "was stopped"), again(0, generation=2))
    assert state.hold.kind == MAJORITY
    assert state.hold.reason == "waits for rank 1 (worker 1 on h1): no other worker has the job's state"
    # It hands the state over to the next worker that joins.
    assert announced(decide(state, Expected(2, "h2"))[1]) == (0,)


def test_newcomers_wait_until_excluded_workers_have_ended() -> None:
    state = after(world(0), *newcomer(1), Evicted(0, "its host was removed"))
    assert state.hold.kind == FENCE
    _, actions, _ = decide(state, Finished(0, "was killed"))
    assert announced(actions) == (1,)


def test_worker_is_excluded_once() -> None:
    state, actions, _ = decide(world(0, 1), Evicted(1, "its host was removed"))
    assert actions[:2] == (Revoke((0,), 1, 1, "its host was removed", certain=False), Evict(1, "its host was removed"))
    assert decide(state, Evicted(1, "again"))[1] == ()


# --- worlds that cannot be formed -----------------------------------------------------------------------------------


def test_higher_rank_of_an_unconnectable_pair_is_left_out() -> None:
    state = after(world(0, 1, 2), again(0, lost=unreached(1)), again(1, lost=unreached(0)))
    _, actions, _ = decide(state, again(2))
    assert announced(actions) == (0, 2)
    assert Evict(1, "cannot connect to others") in actions


def test_single_report_of_a_cut_counts_only_without_other_explanation() -> None:
    state = after(world(0, 1, 2), again(0, lost=unreached(1)), again(1, lost=unreached(1)))
    assert announced(decide(state, again(2))[1]) == (0, 2)
    # The other one was in that world, and has abandoned it for another reason.
    state = after(world(0, 1, 2), again(0, lost=unreached(1)), again(1))
    assert announced(decide(state, again(2))[1]) == (0, 1, 2)
    state = after(world(0, 1, 2, 3), again(1), again(0, lost=unreached(1)), Finished(3, "was killed"))
    assert announced(decide(state, again(2))[1]) == (0, 1, 2)


def test_leaving_worker_is_left_out_first() -> None:
    state = after(world(0, 1), Drained((0,), "its host is needed"), again(0, lost=unreached(1)))
    assert announced(decide(state, again(1, lost=unreached(0)))[1]) == (1,)


def test_unreached_worker_is_waited_for() -> None:
    state = after(world(0, 1), again(0, lost=unreached(1)))
    assert (state.suspects, state.hold.kind) == ({}, MEMBERS)
    assert announced(decide(state, Suspected((1,), "was stopped"))[1]) == (0,)


def test_holder_of_the_state_is_left_out_last() -> None:
    cut = [frozenset({0, 1}), frozenset({0, 2})]
    assert workers_to_leave_out([0, 1, 2], {0}, cut) == [2, 1]
    assert workers_to_leave_out([0, 1, 2], {0, 1, 2}, cut) == [0]
    assert workers_to_leave_out([0, 1, 2], (), []) == []
