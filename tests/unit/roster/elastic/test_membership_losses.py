"""Membership when workers are lost: pure decisions."""

from __future__ import annotations

from membership import after, again, announced, dead, newcomer, silent, started, stopped, world

from farandole.control.roster.elastic import decide
from farandole.control.roster.events import (
    Announce,
    Continued,
    Departure,
    End,
    Evict,
    Failed,
    Finished,
    HoldOver,
    Joined,
    JoinedTogether,
    Lost,
    Refuse,
    Revoke,
    Suspected,
)
from farandole.control.roster.membership import changed, without_connections
from farandole.control.roster.next_world import MAJORITY, MEMBERS, STOPPED


def test_survivors_are_notified_of_death_and_keep_their_order() -> None:
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


def test_survivors_do_not_wait_for_the_launcher_to_notice_a_death() -> None:
    state, actions, _ = decide(world(0, 1), again(0, lost=dead(1)))
    assert announced(actions) == (0,)
    assert not any(isinstance(action, Evict) for action in actions)
    assert decide(state, Finished(1, "was killed"))[1] == ()


def test_silent_worker_is_excluded_and_refused_when_it_joins_late() -> None:
    state, actions, _ = decide(after(world(0, 1, 2), again(0, lost=silent(2))), again(1))
    assert announced(actions) == (0, 1)
    assert Evict(2, "is silent") in actions
    _, actions, reason = decide(state, again(2))
    assert isinstance(actions[0], Refuse)
    assert reason == "worker 2 is refused: the job continues without it: it was excluded, or asked to leave"


def test_suspect_that_joins_in_time_stays() -> None:
    state = after(world(0, 1, 2), Suspected((2,), "is silent"), again(2), again(0))
    assert announced(decide(state, again(1))[1]) == (0, 1, 2)
    assert after(state, again(1)).lost == ()


def test_stopped_worker_that_continues_and_joins_in_time_stays() -> None:
    state = after(world(0, 1, 2), stopped(2), Continued(2), again(2), again(0))
    assert announced(decide(state, again(1))[1]) == (0, 1, 2)


def test_join_of_stopped_worker_waits_for_the_report_that_it_continues() -> None:
    state, actions, _ = decide(after(world(0, 1, 2), stopped(2), again(2), again(0)), again(1))
    assert (announced(actions), state.hold.kind) == ((), STOPPED)
    assert announced(decide(state, Continued(2))[1]) == (0, 1, 2)


def test_worker_that_was_stopped_right_after_it_sent_its_join_keeps_no_other_waiting() -> None:
    state = after(world(0, 1), stopped(0), JoinedTogether((again(0, open=False), Joined(1, "at 1", generation=1))))
    assert state.hold.kind == STOPPED
    _, actions, _ = decide(state, HoldOver(STOPPED))
    assert announced(actions) == (1,)
    assert Evict(0, "was stopped") in actions


def test_sole_worker_that_is_stopped_and_continues_goes_on() -> None:
    state, actions, _ = decide(world(0), stopped(0))
    assert actions == ()  # Nothing waits for it, so no time limit begins.
    state, actions, reason = decide(state, Continued(0))
    assert (state, actions) == (world(0), ())
    assert reason == "rank 0 (worker 0 on h0) has continued"


def test_world_that_has_not_noticed_a_stop_goes_on_after_it() -> None:
    assert after(world(0, 1), stopped(0), Continued(0)) == world(0, 1)


def test_stopped_workers_wait_for_each_other_until_they_continue() -> None:
    state = after(world(0, 1), stopped(0), stopped(1))
    assert state.hold.kind == ""
    state = after(state, Continued(0), Continued(1), again(0))
    assert announced(decide(state, again(1))[1]) == (0, 1)


def test_newcomer_does_not_wait_for_a_stopped_worker_without_end() -> None:
    state = after(world(0), stopped(0), *newcomer(1), Joined(1, "at 1"))
    assert state.hold.kind == MAJORITY
    _, actions, _ = decide(state, HoldOver(MAJORITY))
    assert isinstance(actions[-1], End)
    assert after(state, Continued(0)).notified == (1, 0)


def test_worker_on_a_lost_host_is_not_expected_to_continue() -> None:
    state = after(world(0, 1), stopped(1), Suspected((1,), "was lost with its host"))
    assert state.stopped == {}


def test_launcher_that_takes_over_is_told_anew_which_workers_are_stopped() -> None:
    assert without_connections(after(world(0), stopped(0))) == world(0)


def test_joined_worker_counts_as_alive_despite_accusations() -> None:
    state = after(world(0, 1, 2), again(1, lost=silent(0)), again(0, lost=dead(1)))
    assert announced(decide(state, again(2))[1]) == (0, 1, 2)


def test_certain_loss_replaces_suspicion() -> None:
    state = after(world(0, 1, 2, 3), again(0, lost=silent(3)), again(1, lost=dead(3)))
    assert (state.suspects, state.gone) == ({}, {3})


def test_stale_self_and_unknown_accusations_are_ignored() -> None:
    state = after(world(0, 1), again(0), again(1))
    for join in (
        again(0, lost=dead(1)),
        again(0, 2, lost=dead(0)),
        again(0, 2, lost=dead(-1)),
        again(0, 2, lost=dead(7)),
    ):
        assert after(state, join).gone == frozenset()


def test_join_of_dead_worker_is_refused() -> None:
    state = after(world(0, 1), Finished(1, "was killed"))
    assert isinstance(decide(state, again(1))[1][0], Refuse)
    assert announced(decide(after(state, again(1)), again(0))[1]) == (0,)


BOOM = "ValueError: boom"


def test_failed_worker_is_not_waited_for() -> None:
    state, actions, reason = decide(world(0, 1, 2, 3), Failed(1, BOOM))
    assert actions[0] == Revoke((0, 2, 3), 1, 1, f"raised {BOOM}", True)
    assert reason.startswith(f"rank 1 (worker 1 on h1) reports that it failed: {BOOM}")
    state = after(state, again(0, lost=dead(1)), Failed(2, BOOM))
    _, actions, _ = decide(state, again(3, lost=dead(1)))
    assert announced(actions) == (0, 3)
    announcement = next(action for action in actions if isinstance(action, Announce))
    assert announcement.lost == (Departure(1, 1, f"raised {BOOM}"), Departure(2, 2, f"raised {BOOM}"))


def test_failed_worker_counts_as_certainly_ended() -> None:
    state = after(world(0, 1, 2), Failed(1, BOOM), Failed(2, BOOM))
    assert announced(decide(state, again(0))[1]) == (0,), "the others are the majority, but have certainly ended"
    state = after(world(0, 1), Suspected((1,), "is silent"), Failed(1, BOOM))
    _, actions, _ = decide(state, again(0))
    assert announced(actions) == (0,)
    assert not any(isinstance(action, Evict) for action in actions), "it ends by itself"


def test_failed_worker_enters_no_other_world() -> None:
    state = after(world(0, 1), Failed(1, BOOM))
    assert isinstance(decide(state, again(1))[1][0], Refuse)
    waiting = after(world(0, 1), again(1))
    assert Refuse(1, f"it has failed: {BOOM}", evicted=True) in decide(waiting, Failed(1, BOOM))[1]
    assert announced(decide(after(waiting, Failed(1, BOOM)), again(0))[1]) == (0,)


def test_end_of_failed_worker_changes_nothing() -> None:
    state = after(world(0, 1), Failed(1, BOOM), again(0))
    assert (state.generation, state.members) == (2, (0,))
    assert decide(state, Failed(1, BOOM))[:2] == (state, ())
    assert decide(state, Finished(1, "exited with code 1"))[:2] == (changed(state, device_numbers={0: ("h0", 0)}), ())


def test_newcomer_that_fails_before_it_joins_is_not_waited_for() -> None:
    state = after(started(0, 1), Joined(0, "at 0"))
    assert announced(decide(state, Failed(1, BOOM))[1]) == (0,)


def test_member_that_disconnects_while_waiting_is_waited_for() -> None:
    state = after(world(0, 1, 2), again(0), again(1), Lost(1))
    assert announced(decide(state, again(2))[1]) == ()
    assert announced(decide(after(state, again(2)), again(1))[1]) == (0, 1, 2)


def test_member_that_does_not_join_in_time_is_excluded() -> None:
    state = after(world(0, 1, 2), again(0), again(1))
    assert state.hold.kind == MEMBERS
    _, actions, reason = decide(state, HoldOver(MEMBERS))
    assert announced(actions) == (0, 1)
    assert Evict(2, "did not join within 600 s") in actions
    assert reason == "waited 600 s for rank 2 (worker 2 on h2); generation 2 begins with 2 workers"


def test_end_of_another_hold_changes_nothing() -> None:
    state = world(0, 1)
    assert decide(state, HoldOver(MEMBERS)) == (state, (), "nothing is waited for any more")
