"""The rules of membership when workers are lost, as data in and data out."""

from __future__ import annotations

from membership import after, again, announced, dead, silent, started, world

from farandole.control.roster.elastic import decide
from farandole.control.roster.events import (
    Announce,
    Departure,
    Evict,
    Failed,
    Finished,
    HoldOver,
    Joined,
    Lost,
    Refuse,
    Revoke,
    Suspected,
)
from farandole.control.roster.membership import changed
from farandole.control.roster.next_world import MEMBERS


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
    assert Refuse(1, f"it has failed: {BOOM}", evicted=True) in decide(waiting, Failed(1, BOOM))[1]
    assert announced(decide(after(waiting, Failed(1, BOOM)), again(0))[1]) == (0,)


def test_the_end_of_one_that_has_failed_changes_nothing_more() -> None:
    state = after(world(0, 1), Failed(1, BOOM), again(0))
    assert (state.generation, state.members) == (2, (0,))
    assert decide(state, Failed(1, BOOM))[:2] == (state, ())
    assert decide(state, Finished(1, "exited with code 1"))[:2] == (changed(state, device_numbers={0: ("h0", 0)}), ())


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
