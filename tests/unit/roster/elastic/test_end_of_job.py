"""Membership when workers finish or fail, up to the end of the job: pure decisions."""

from __future__ import annotations

import pytest
from membership import after, again, announced, newcomer, world

from farandole.base.wire.rendezvous import Accused
from farandole.control.roster.elastic import decide
from farandole.control.roster.events import (
    Announce,
    Departure,
    End,
    Expected,
    Finished,
    Hold,
    HoldOver,
    Joined,
    Left,
    Notify,
    Refuse,
    Revoke,
)
from farandole.control.roster.next_world import MEMBERS, MINIMUM


def test_newcomers_are_refused_once_workers_have_finished() -> None:
    state, actions, _ = decide(after(world(0, 1, 2, least=2), *newcomer(3)), Left(0, 1))
    assert actions[0] == Refuse(3, "the job is about to end: workers have finished", evicted=True)
    state = after(state, Finished(1, "was killed"))
    state, actions, _ = decide(state, again(2, open=False))
    assert announced(actions) == (2,)  # The others finish their step, however few they are.
    assert announced(decide(state, again(2, 2, open=False))[1]) == (2,)
    assert isinstance(decide(after(state, Expected(4, "h4")), Joined(4, ""))[1][0], Refuse)


def test_announcement_names_workers_that_have_finished() -> None:
    state = after(world(0, 1), Left(1, 1))
    for ends, how in ((), "has left"), ((exited(1, 0),), "has finished"):
        _, actions, _ = decide(after(state, *ends), again(0))
        (announce,) = [action for action in actions if isinstance(action, Announce)]
        assert (announce.workers, announce.lost) == ((0,), ())
        assert announce.finished == (Departure(1, 1, how),)


@pytest.mark.parametrize("code", [0, 3])
def test_worker_whose_goodbye_reached_only_peers_has_finished_if_it_exits_with_0(code: int) -> None:
    said = (Accused(1, "has shut down", True, left=True),)
    state, actions, _ = decide(world(0, 1, 2), again(0, lost=said))
    assert not any(isinstance(action, Revoke) for action in actions), "the others have heard it too"
    state = after(state, again(2, lost=said), Left(1, 1))
    assert state.members == (0, 2) and state.finishing and not state.lost
    assert after(state, exited(1, code)).finishing == (code == 0)


def test_workers_that_left_may_form_a_new_world() -> None:
    state = after(world(0, 1), Left(0, 1), Left(1, 1), Joined(1, "b", arriving=True))
    assert state.hold.kind == MEMBERS
    assert announced(decide(state, Joined(0, "a", arriving=True))[1]) == (0, 1)


def exited(worker: int, code: int = 3) -> Finished:
    return Finished(worker, f"exited with code {code}", failed=code != 0)


def test_worker_that_leaves_and_then_fails_is_lost() -> None:
    state = after(world(0, 1, 2), Left(1, 1))
    assert state.finishing
    state, actions, _ = decide(state, exited(1))
    assert actions[0] == Revoke((0, 2), 1, 1, "exited with code 3", certain=True)
    assert not state.finishing
    state = after(state, *newcomer(3), again(0))
    assert announced(decide(state, again(2))[1]) == (0, 2, 3)


def test_failure_after_leaving_an_earlier_world_does_not_end_the_job() -> None:
    state = after(world(0, 1, 2), Left(1, 1), again(0), again(2))
    assert state.members == (0, 2) and state.finishing
    state = after(state, exited(1))
    assert not state.finishing and not state.lost
    assert decide(after(state, Expected(3, "h3")), Joined(3, "d"))[1] == (
        Notify((0, 2), 2, 1, 0, "1 worker waits to join"),
    )


def test_newcomers_form_a_world_when_all_members_leave_and_fail() -> None:
    state = after(world(0, 1), Left(0, 1), Left(1, 1), exited(0))
    assert isinstance(decide(after(state, Expected(2, "h2")), Joined(2, "c"))[1][0], Refuse)
    state = after(state, exited(1), Expected(3, "h3"))
    assert announced(decide(state, Joined(3, "d"))[1]) == (3,)


def test_job_is_finishing_once_one_worker_exits_with_0() -> None:
    assert after(world(0, 1, 2), Left(0, 1), exited(0, 0), Left(1, 1), exited(1)).finishing


def test_too_few_survivors_wait_for_the_minimum_and_then_end() -> None:
    state = after(world(0, 1, least=2), Finished(1, "was killed"))
    state, actions, reason = decide(state, again(0))
    assert isinstance(actions[-1], Hold) and actions[-1].kind == MINIMUM
    assert "1 of at least 2 are here" in reason
    _, actions, reason = decide(state, HoldOver(MINIMUM))
    assert actions == (Refuse(0, reason), Hold(""), End(reason))
    assert announced(decide(after(state, Expected(2, "h2")), Joined(2, "c"))[1]) == (0, 2)


def test_waiting_newcomers_form_a_world_when_all_members_have_died() -> None:
    state = after(world(0), *newcomer(1))
    assert announced(decide(state, Finished(0, "was killed"))[1]) == (1,)


def test_job_ends_when_reset_limit_is_exceeded() -> None:
    state = after(world(0, reset_limit=1), again(0))
    _, actions, reason = decide(state, again(0, 2))
    assert actions[-1] == End("Horovod was shutdown because number of resets during elastic job exceeded limit: 1")
    assert reason.endswith("exceeded limit: 1")


def test_worker_that_joins_after_the_end_is_refused_with_the_reason() -> None:
    state = after(world(0, reset_limit=0), again(0))
    _, actions, _ = decide(after(state, Expected(1, "h1")), Joined(1, ""))
    assert actions == (Refuse(1, state.ended),)


def test_state_keeps_no_data_of_departed_workers() -> None:
    state = world(0, 1)
    for number in range(2, 1000):
        generation = state.generation
        state = after(state, *newcomer(number), Finished(number - 1, "was killed"), again(0, generation))
    assert (state.members, set(state.hosts), state.waiting) == ((0, 999), {0, 999}, {})
    assert not (state.expected or state.barred or state.gone or state.suspects or state.leaving or state.lost)
