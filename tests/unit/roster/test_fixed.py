"""Membership of a job of fixed size: pure decisions."""

from __future__ import annotations

import pytest

from farandole.control.roster.arrivals import START
from farandole.control.roster.events import (
    Announce,
    Event,
    Failed,
    Finished,
    Hold,
    HoldOver,
    Joined,
    Left,
    Lost,
    Place,
    Refuse,
    find_places,
    ranks,
)
from farandole.control.roster.fixed import FixedState, decide


def fresh(size: int) -> FixedState:
    return FixedState(places=places(size))


def places(size: int) -> tuple[Place, ...]:
    """Return the places of the workers of `fresh`."""
    return tuple(Place("here", rank, size, 0, 1) for rank in range(size))


def after(state: FixedState, *events: Event) -> FixedState:
    for event in events:
        state, _, _ = decide(state, event)
    return state


def everyone(size: int) -> list[Joined]:
    return [Joined(rank, f"at {rank}") for rank in range(size)]


def test_world_begins_with_the_last_join_and_is_ordered_by_rank() -> None:
    state = after(fresh(3), Joined(2, "c"), Joined(0, "a"))
    assert list(state.waiting.values()) == [Joined(2, "c"), Joined(0, "a")]
    state, actions, reason = decide(state, Joined(1, "b"))
    assert actions == (Announce(1, ("a", "b", "c"), places(3)), Hold(""))
    assert reason == "rank 1 joined; all 3 are here: generation 1 begins"
    assert (state.generation, state.waiting, state.members) == (1, {}, frozenset({0, 1, 2}))


def test_every_round_of_joins_makes_the_next_generation() -> None:
    state = fresh(2)
    for generation in range(1, 101):
        state = after(state, Joined(0, "a"))
        state, actions, _ = decide(state, Joined(1, "b"))
        assert actions == (Announce(generation, ("a", "b"), places(2)), Hold(""))
        state = after(state, Left(1, generation), Left(0, generation))
        assert state.members == frozenset()


def test_joining_again_implies_leaving_the_old_world() -> None:
    state = after(fresh(2), *everyone(2), Joined(0, "again"))
    assert state.members == frozenset({1})
    _, actions, _ = decide(state, Joined(1, "too"))
    assert actions == (Announce(2, ("again", "too"), places(2)), Hold(""))


def test_leaving_an_old_generation_changes_nothing() -> None:
    state = after(fresh(2), *everyone(2), *everyone(2))
    assert decide(state, Left(0, 1)) == (state, (), "rank 0 left generation 1, which is over for it")


def test_a_rank_outside_the_world_is_refused() -> None:
    state, actions, _ = decide(fresh(2), Joined(2, "x"))
    assert state == fresh(2)
    assert isinstance(actions[0], Refuse) and "FARANDOLE_RANK" in actions[0].reason


def test_exit_refuses_all_waiting_workers_at_once() -> None:
    state = after(fresh(3), Joined(0, "a"), Joined(2, "c"))
    state, actions, reason = decide(state, Finished(1, "exited with code 3"))
    why = "the world of workers cannot be completed: rank 1 exited with code 3 before it joined"
    assert actions == (Refuse(0, why, 1), Refuse(2, why, 1), Hold(""))
    assert reason == "rank 1 exited with code 3; ranks 0, 2 waited for it"
    assert state.waiting == {}


def test_join_after_exits_is_refused_with_the_first_exit() -> None:
    state = after(fresh(3), Finished(1, "was killed by SIGKILL"), Finished(2, "exited with code 1"))
    _, actions, _ = decide(state, Joined(0, "a"))
    assert actions == (
        Refuse(0, "the world of workers cannot be completed: rank 1 was killed by SIGKILL before it joined", 1),
    )


def test_exit_without_waiting_workers_is_only_recorded() -> None:
    state, actions, reason = decide(after(fresh(2), *everyone(2)), Finished(1, "exited with code 0"))
    assert (actions, reason) == ((), "rank 1 exited with code 0")
    assert state.members == frozenset({0})


def test_waiting_worker_that_exits_gets_no_answer() -> None:
    _, actions, _ = decide(after(fresh(2), Joined(0, "a")), Finished(0, "exited with code 1"))
    assert actions == (Hold(""),)


def test_closed_connection_withdraws_the_join() -> None:
    state = after(fresh(2), Joined(0, "a"), Lost(0))
    assert state.waiting == {}
    _, actions, _ = decide(after(state, Joined(0, "b")), Joined(1, "c"))
    assert actions == (Announce(1, ("b", "c"), places(2)), Hold(""))


def test_timeout_names_missing_ranks_and_refuses_waiting_workers() -> None:
    state = after(fresh(5), Joined(0, "a", timeout=60.0), Joined(3, "d", timeout=30.0))
    state, actions, reason = decide(state, HoldOver(START))
    assert reason.startswith("3 of 5 workers did not join within 30 s of the latest arrival: ranks 1-2, 4. ")
    assert "--start-timeout" in reason
    assert actions == (Refuse(0, reason), Refuse(3, reason), Hold(""))
    assert state.waiting == {}
    assert decide(state, HoldOver(START))[1] == ()


def test_hold_runs_while_a_worker_waits_and_restarts_with_every_arrival() -> None:
    state = fresh(3)
    assert state.hold == Hold("")
    state, actions, _ = decide(state, Joined(0, "a", timeout=30.0))
    assert isinstance(actions[-1], Hold)
    assert actions[-1].reason == "waits for ranks 1-2 to join"
    first = state.hold
    state = after(state, Joined(2, "c", timeout=20.0))
    assert (state.hold.kind, state.hold.seconds) == (START, 20.0)
    assert state.hold.arrivals != first.arrivals
    # No worker waits any more.
    assert after(state, Lost(0), Lost(2)).hold == Hold("")


def test_failure_is_only_recorded() -> None:
    state = after(fresh(1), *everyone(1))
    assert decide(state, Failed(0, "ValueError: x")) == (state, (), "rank 0 reports that it failed: ValueError: x")


def test_unplanned_places_follow_from_reported_hosts() -> None:
    hosts = ["a", "b", "a", "b", "a", "c"]
    joins = [Joined(rank, "", f"{host}-id", host) for rank, host in enumerate(hosts)]
    # Workers join in any order; places follow the ranks.
    state = after(FixedState(places=(None,) * 6), *joins[3:], *joins[:2])
    _, actions, _ = decide(state, joins[2])
    assert isinstance(actions[0], Announce)
    assert actions[0].places == (
        Place("a", 0, 3, 0, 3),
        Place("b", 0, 2, 1, 3),
        Place("a", 1, 3, 0, 2),
        Place("b", 1, 2, 1, 2),
        Place("a", 2, 3, 0, 1),
        Place("c", 0, 1, 2, 3),
    )


def test_planned_places_override_reported_hosts() -> None:
    state = after(fresh(2), Joined(0, "", "x", "elsewhere"))
    assert decide(state, Joined(1, "", "y", "nowhere"))[1] == (Announce(1, ("", ""), places(2)), Hold(""))


def test_hosts_of_the_same_name_are_numbered() -> None:
    hosts = [(host, "localhost") for host in ["x", "y", "x", "z"]]
    assert [place.hostname for place in find_places(hosts)] == [
        "localhost",
        "localhost (2)",
        "localhost",
        "localhost (3)",
    ]
    assert [place.local_size for place in find_places(hosts)] == [2, 1, 2, 1]


@pytest.mark.parametrize(
    ("numbers", "text"), [([4], "rank 4"), ([1, 0], "ranks 0-1"), ([9, 1, 2, 3, 5], "ranks 1-3, 5, 9")]
)
def test_ranks_are_formatted_as_ranges(numbers: list[int], text: str) -> None:
    assert ranks(numbers) == text
