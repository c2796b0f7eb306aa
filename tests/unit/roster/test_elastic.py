"""Every rule of membership of workers that come and go, as data in and data out."""

from __future__ import annotations

import pytest

from farandole.roster.elastic import Limits, State, decide
from farandole.roster.events import (
    Accusation,
    Action,
    Announce,
    Departure,
    Drained,
    End,
    Event,
    Evict,
    Evicted,
    Expected,
    Failed,
    Finished,
    Hold,
    HoldOver,
    Joined,
    Left,
    Lost,
    Notify,
    Promised,
    Refuse,
    Resized,
    Revoke,
    Show,
    Suspected,
    TimedOut,
)
from farandole.roster.exclusion import workers_to_leave_out
from farandole.roster.next_world import FENCE, MAJORITY, MEMBERS, MINIMUM, START


def after(state: State, *events: Event) -> State:
    for event in events:
        state, _, _ = decide(state, event)
    return state


def started(*workers: int, least: int = 1, most: int = 4, reset_limit: int | None = None) -> State:
    limits = Limits(least, most, reset_limit=reset_limit)
    return after(State(limits), *(Expected(worker, f"h{worker}") for worker in workers))


def world(*workers: int, least: int = 1, most: int = 4, reset_limit: int | None = None) -> State:
    """Return a job whose first world has begun."""
    fresh = started(*workers, least=least, most=most, reset_limit=reset_limit)
    return after(fresh, *(Joined(worker, f"at {worker}") for worker in workers))


def again(worker: int, generation: int = 1, *, lost: tuple[Accusation, ...] = (), open: bool = True) -> Joined:
    """Return the join of a worker that was in a world."""
    return Joined(worker, f"at {worker}", generation=generation, trained=True, accused=lost, open=open)


def newcomer(worker: int) -> tuple[Event, ...]:
    return Expected(worker, f"h{worker}"), Joined(worker, f"at {worker}")


def announced(actions: tuple[Action, ...]) -> tuple[int, ...]:
    """Return the workers of the world that is announced; () if none is."""
    return next((action.workers for action in actions if isinstance(action, Announce)), ())


def dead(rank: int) -> tuple[Accusation, ...]:
    return (Accusation(rank, "closed its connections", True),)


def silent(rank: int) -> tuple[Accusation, ...]:
    return (Accusation(rank, "is silent", False),)


def unreached(rank: int) -> tuple[Accusation, ...]:
    return (Accusation(rank, "could not be reached", False, True),)


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
    assert reason == "waited 30 s for worker 1 on h1 to join"


def test_nobody_waits_for_more_workers_than_there_is_room_for() -> None:
    state, actions, _ = decide(after(started(0, 1, 2, most=2), Joined(2, "c")), Joined(0, "a"))
    assert announced(actions) == (0, 2)
    assert state.expected == {1}


def test_who_arrives_before_there_is_a_world_waits_for_it() -> None:
    assert announced(decide(started(0), Joined(0, "a", arriving=True))[1]) == (0,)


# --- losses ---------------------------------------------------------------------------------------------------------


def test_the_others_hear_of_a_death_and_go_on_in_their_old_order() -> None:
    state, actions, reason = decide(world(0, 1, 2, 3), Finished(1, "was killed by SIGKILL"))
    assert actions[0] == Revoke((0, 2, 3), 1, 1, "was killed by SIGKILL", certain=True)
    assert reason == (
        "rank 1 (worker 1 on h1) was killed by SIGKILL; "
        "waits for rank 0 (worker 0 on h0), rank 2 (worker 2 on h2), rank 3 (worker 3 on h3)"
    )
    state = after(state, again(3, lost=dead(1)), again(0))
    _, actions, _ = decide(state, again(2))
    assert isinstance(actions[-1], Announce)
    assert (actions[-1].workers, actions[-1].previous) == ((0, 2, 3), (0, 2, 3))
    assert actions[-1].lost == (Departure(1, 1, "was killed by SIGKILL"),)


def test_survivors_do_not_wait_until_the_launcher_knows_of_a_death() -> None:
    state, actions, _ = decide(world(0, 1), again(0, lost=dead(1)))
    assert announced(actions) == (0,)
    assert not any(isinstance(action, Evict) for action in actions)
    assert decide(state, Finished(1, "was killed"))[1] == ()


def test_who_is_silent_is_counted_out_and_refused_when_it_comes_late() -> None:
    state, actions, _ = decide(after(world(0, 1, 2), again(0, lost=silent(2))), again(1))
    assert announced(actions) == (0, 1)
    assert Evict(2, "is silent") in actions
    _, actions, reason = decide(state, again(2))
    assert isinstance(actions[0], Refuse)
    assert reason == "worker 2 is refused: the job goes on without it: it was counted out, or asked to leave"


def test_a_suspect_that_joins_in_time_lives() -> None:
    state = after(world(0, 1, 2), Suspected((2,), "was stopped"), again(2), again(0))
    assert announced(decide(state, again(1))[1]) == (0, 1, 2)
    assert after(state, again(1)).lost == ()


def test_a_worker_that_has_joined_is_believed_to_live_whatever_others_say() -> None:
    state = after(world(0, 1, 2), again(1, lost=silent(0)), again(0, lost=dead(1)))
    assert announced(decide(state, again(2))[1]) == (0, 1, 2)


def test_a_certain_word_counts_more_than_a_suspicion() -> None:
    state = after(world(0, 1, 2, 3), again(0, lost=silent(3)), again(1, lost=dead(3)))
    assert (state.suspects, state.gone) == ({}, {3})


def test_accusations_of_older_worlds_of_oneself_and_of_nobody_do_not_count() -> None:
    state = after(world(0, 1), again(0), again(1))
    for join in (
        again(0, lost=dead(1)),
        again(0, 2, lost=dead(0)),
        again(0, 2, lost=dead(-1)),
        again(0, 2, lost=dead(7)),
    ):
        assert after(state, join).gone == frozenset()


def test_what_a_dead_worker_has_sent_before_is_not_believed() -> None:
    state = after(world(0, 1), Finished(1, "was killed"))
    assert isinstance(decide(state, again(1))[1][0], Refuse)
    assert announced(decide(after(state, again(1)), again(0))[1]) == (0,)


BOOM = "ValueError: boom"


def test_who_says_that_it_failed_is_not_waited_for() -> None:
    state, actions, reason = decide(world(0, 1, 2, 3), Failed(1, BOOM))
    assert actions[0] == Revoke((0, 2, 3), 1, 1, f"raised {BOOM}", True)
    assert reason.startswith(f"rank 1 (worker 1 on h1) reports that it failed: {BOOM}")
    state = after(state, again(0, lost=dead(1)), Failed(2, BOOM))
    _, actions, _ = decide(state, again(3, lost=dead(1)))
    assert announced(actions) == (0, 3)
    announcement = next(action for action in actions if isinstance(action, Announce))
    assert announcement.lost == (Departure(1, 1, f"raised {BOOM}"), Departure(2, 2, f"raised {BOOM}"))


def test_who_said_that_it_failed_is_not_in_doubt() -> None:
    state = after(world(0, 1, 2), Failed(1, BOOM), Failed(2, BOOM))
    assert announced(decide(state, again(0))[1]) == (0,), "the others are more, and do nothing any more"
    state = after(world(0, 1), Suspected((1,), "is silent"), Failed(1, BOOM))
    _, actions, _ = decide(state, again(0))
    assert announced(actions) == (0,)
    assert not any(isinstance(action, Evict) for action in actions), "it ends by itself"


def test_who_said_that_it_failed_comes_into_no_world_any_more() -> None:
    state = after(world(0, 1), Failed(1, BOOM))
    assert isinstance(decide(state, again(1))[1][0], Refuse)
    waiting = after(world(0, 1), again(1))
    assert Refuse(1, f"it has failed: {BOOM}") in decide(waiting, Failed(1, BOOM))[1]
    assert announced(decide(after(waiting, Failed(1, BOOM)), again(0))[1]) == (0,)


def test_the_end_of_one_that_has_failed_changes_nothing_more() -> None:
    state = after(world(0, 1), Failed(1, BOOM), again(0))
    assert (state.generation, state.members) == (2, (0,))
    for event in (Finished(1, "exited with code 1"), Failed(1, BOOM)):
        assert decide(state, event)[:2] == (state, ())


def test_a_newcomer_that_fails_before_it_joins_is_not_waited_for() -> None:
    state = after(started(0, 1), Joined(0, "at 0"))
    assert announced(decide(state, Failed(1, BOOM))[1]) == (0,)


def test_who_hangs_up_while_it_waits_is_waited_for() -> None:
    state = after(world(0, 1, 2), again(0), again(1), Lost(1))
    assert announced(decide(state, again(2))[1]) == ()
    assert announced(decide(after(state, again(2)), again(1))[1]) == (0, 1, 2)


def test_who_does_not_come_for_too_long_is_counted_out() -> None:
    state = after(world(0, 1, 2), again(0), again(1))
    assert state.hold.kind == MEMBERS
    _, actions, reason = decide(state, HoldOver(MEMBERS))
    assert announced(actions) == (0, 1)
    assert Evict(2, "did not come within 600 s") in actions
    assert reason == "waited 600 s for rank 2 (worker 2 on h2); generation 2 begins with 2 workers"


def test_a_time_that_is_over_for_something_else_changes_nothing() -> None:
    state = world(0, 1)
    assert decide(state, HoldOver(MEMBERS)) == (state, (), "there is nothing to wait for any more")
    assert decide(state, TimedOut(0, 1.0)) == (state, (), "rank 0 (worker 0 on h0) waits on")


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
    # Once is enough; and who has joined has turned away.
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


# --- newcomers ------------------------------------------------------------------------------------------------------


def test_a_newcomer_looks_prepares_itself_and_comes_in_at_the_end_of_a_step() -> None:
    state, actions, _ = decide(after(world(0, 1), Expected(2, "h2")), Joined(2, "c", arriving=True))
    assert actions == (Show(2),)
    assert state.expected == {2}
    state, actions, reason = decide(state, Joined(2, "c"))
    assert actions == (Notify((0, 1), 1, 0, "1 worker waits to join"),)
    assert reason == "worker 2 on h2 joined; 1 worker waits to join"
    _, actions, _ = decide(after(state, again(1)), again(0))
    assert isinstance(actions[-1], Announce)
    assert (actions[-1].workers, actions[-1].previous) == ((0, 1, 2), (0, 1, -1))


def test_a_newcomer_that_goes_away_again_is_taken_back() -> None:
    state = after(world(0, 1), *newcomer(2))
    assert decide(state, Finished(2, "was killed"))[1] == (
        Notify((0, 1), 0, 0, "nobody waits to join or is to leave any more"),
    )


def test_nobody_comes_in_in_the_middle_of_a_step_and_is_told_of_right_after() -> None:
    state = after(world(0, 1, 2), *newcomer(3), Finished(2, "was killed"), again(0, open=False))
    state, actions, reason = decide(state, again(1, open=False))
    assert announced(actions) == (0, 1)
    assert actions[-1] == Notify((0, 1), 1, 0, "1 worker waits to join")
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
    assert actions[:2] == (Refuse(1, "it was counted out: was stopped"), Evict(1, "was stopped"))


# --- leaving --------------------------------------------------------------------------------------------------------


def test_a_drained_worker_finishes_its_step_and_leaves() -> None:
    state, actions, _ = decide(world(0, 1, 2), Drained((1,), "its host is needed"))
    assert actions == (Notify((0, 1, 2), 0, 1, "1 worker is to leave"),)
    state = after(state, again(0), again(1))
    _, actions, _ = decide(state, again(2))
    assert announced(actions) == (0, 2)
    assert Refuse(1, "it was asked to leave") in actions


def test_a_drained_worker_stays_until_the_end_of_a_step_that_breaks() -> None:
    state = after(world(0, 1, 2), Drained((1,), "its host is needed"), Finished(2, "was killed"), again(0, open=False))
    _, actions, _ = decide(state, again(1, open=False))
    assert announced(actions) == (0, 1)
    assert actions[-1] == Notify((0, 1), 0, 1, "1 worker is to leave")


def test_a_drained_newcomer_leaves_at_once_or_when_it_comes() -> None:
    state = after(world(0), *newcomer(1), Expected(2, "h2"))
    state, actions, _ = decide(state, Drained((1, 2), "its host is needed"))
    assert actions[0] == Refuse(1, "it was asked to leave: its host is needed")
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
    assert decide(state, Promised(False))[1] == (Notify((0,), 0, 1, "1 worker is to leave"),)


def test_a_job_that_is_made_smaller_lets_the_last_ones_go() -> None:
    state, actions, _ = decide(world(0, 1, 2), Resized(1, 2))
    assert actions == (Notify((0, 1, 2), 0, 1, "1 worker is to leave"),)
    _, actions, _ = decide(after(state, again(0), again(2)), again(1))
    assert announced(actions) == (0, 1)
    assert Refuse(2, "the job was made smaller") in actions


# --- the end --------------------------------------------------------------------------------------------------------


def test_when_workers_have_finished_nobody_else_is_needed() -> None:
    state, actions, _ = decide(after(world(0, 1, 2, least=2), *newcomer(3)), Left(0, 1))
    assert actions[0] == Refuse(3, "the job is about to end: workers have finished")
    state = after(state, Finished(1, "was killed"))
    state, actions, _ = decide(state, again(2, open=False))
    assert announced(actions) == (2,)  # However few they are, they finish what they are at.
    assert announced(decide(state, again(2, 2, open=False))[1]) == (2,)
    assert isinstance(decide(after(state, Expected(4, "h4")), Joined(4, ""))[1][0], Refuse)


def test_who_has_finished_is_named_with_the_world_that_goes_on_without_it() -> None:
    _, actions, _ = decide(after(world(0, 1), Left(1, 1)), again(0))
    (announce,) = [action for action in actions if isinstance(action, Announce)]
    assert (announce.workers, announce.lost) == ((0,), ())
    assert announce.finished == (Departure(1, 1, "has finished"),)


@pytest.mark.parametrize("code", [0, 3])
def test_whose_goodbye_only_the_others_have_heard_has_finished_if_it_ends_well(code: int) -> None:
    said = (Accusation(1, "has shut down", True, left=True),)
    state, actions, _ = decide(world(0, 1, 2), again(0, lost=said))
    assert not any(isinstance(action, Revoke) for action in actions), "the others have heard it too"
    state = after(state, again(2, lost=said), Left(1, 1))
    assert state.members == (0, 2) and state.finishing and not state.lost
    assert after(state, exited(1, code)).finishing == (code == 0)


def test_workers_that_have_left_may_begin_anew_together() -> None:
    state = after(world(0, 1), Left(0, 1), Left(1, 1), Joined(1, "b", arriving=True))
    assert state.hold.kind == MEMBERS
    assert announced(decide(state, Joined(0, "a", arriving=True))[1]) == (0, 1)


def exited(worker: int, code: int = 3) -> Finished:
    return Finished(worker, f"exited with code {code}", failed=code != 0)


def test_who_leaves_and_then_fails_is_lost_like_one_that_was_killed() -> None:
    state = after(world(0, 1, 2), Left(1, 1))
    assert state.finishing
    state, actions, _ = decide(state, exited(1))
    assert actions[0] == Revoke((0, 2), 1, 1, "exited with code 3", certain=True)
    assert not state.finishing
    state = after(state, *newcomer(3), again(0))
    assert announced(decide(state, again(2))[1]) == (0, 2, 3)


def test_who_left_an_earlier_world_and_then_fails_ends_no_job_either() -> None:
    state = after(world(0, 1, 2), Left(1, 1), again(0), again(2))
    assert state.members == (0, 2) and state.finishing
    state = after(state, exited(1))
    assert not state.finishing and not state.lost
    assert decide(after(state, Expected(3, "h3")), Joined(3, "d"))[1] == (
        Notify((0, 2), 1, 0, "1 worker waits to join"),
    )


def test_when_all_leave_and_fail_newcomers_begin_anew() -> None:
    state = after(world(0, 1), Left(0, 1), Left(1, 1), exited(0))
    assert isinstance(decide(after(state, Expected(2, "h2")), Joined(2, "c"))[1][0], Refuse)
    state = after(state, exited(1), Expected(3, "h3"))
    assert announced(decide(state, Joined(3, "d"))[1]) == (3,)


def test_when_one_has_ended_well_the_job_is_about_to_end_however_others_do() -> None:
    assert after(world(0, 1, 2), Left(0, 1), exited(0, 0), Left(1, 1), exited(1)).finishing


def test_too_few_wait_for_others_and_end() -> None:
    state = after(world(0, 1, least=2), Finished(1, "was killed"))
    state, actions, reason = decide(state, again(0))
    assert isinstance(actions[-1], Hold) and actions[-1].kind == MINIMUM
    assert "1 of at least 2 are here" in reason
    _, actions, reason = decide(state, HoldOver(MINIMUM))
    assert actions == (Refuse(0, reason), Hold(""), End(reason))
    assert announced(decide(after(state, Expected(2, "h2")), Joined(2, "c"))[1]) == (0, 2)


def test_when_all_have_died_newcomers_that_wait_begin_anew() -> None:
    state = after(world(0), *newcomer(1))
    assert announced(decide(state, Finished(0, "was killed"))[1]) == (1,)


def test_after_so_many_resets_the_job_ends() -> None:
    state = after(world(0, reset_limit=1), again(0))
    _, actions, reason = decide(state, again(0, 2))
    assert actions[-1] == End("Horovod was shutdown because number of resets during elastic job exceeded limit: 1")
    assert reason.endswith("exceeded limit: 1")


def test_who_joins_after_the_end_is_told_why() -> None:
    state = after(world(0, reset_limit=0), again(0))
    _, actions, _ = decide(after(state, Expected(1, "h1")), Joined(1, ""))
    assert actions == (Refuse(1, state.ended),)


def test_nothing_is_kept_of_those_that_are_gone() -> None:
    state = world(0, 1)
    for number in range(2, 1000):
        generation = state.generation
        state = after(state, *newcomer(number), Finished(number - 1, "was killed"), again(0, generation))
    assert (state.members, set(state.hosts), state.waiting) == ((0, 999), {0, 999}, ())
    assert not (state.expected or state.barred or state.gone or state.suspects or state.leaving or state.lost)
