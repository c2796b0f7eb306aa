"""Every interleaving of small jobs, and long random paths of larger ones; see `model`.

FARANDOLE_EXPLORE=all explores larger jobs with hosts as well, which takes some minutes, FARANDOLE_EXPLORE=1 all larger
jobs, which takes about an hour, and FARANDOLE_EXPLORE=brief only jobs that take less than a second each. `explorer`
explains why every interleaving is covered.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import joined_decisions
import model
import model_roster
from explorer import Explorer, without_noise
from model_state import Step, System, Violation
from msgspec.structs import replace

from farandole.control.launcher.slots import failure_rules
from farandole.control.roster import next_world
from farandole.control.roster.elastic import Decision, ElasticState, Limits
from farandole.control.roster.events import Action, Announce, End, Event, Evict, Finished, Refuse, Suspected

Actions = tuple[Action, ...]

HOW = "set FARANDOLE_EXPLORE=1"
THOROUGH = os.environ.get("FARANDOLE_EXPLORE") == "1"
ALL = THOROUGH or os.environ.get("FARANDOLE_EXPLORE") == "all"
BRIEF = os.environ.get("FARANDOLE_EXPLORE") == "brief"

# Faults of single workers and links, after which the job continues with the remaining workers.
MOST_KINDS = ("kill", "fail", "stop", "continue", "evict", "cut")
MORE_KINDS = (*MOST_KINDS, "newcomer", "last", "hang up")

# workers, faults, least, most, kinds of faults, whether messages arrive at once
QUICK = [
    (2, 1, 1, 2, model.KINDS, False),
    (2, 1, 2, 2, model.KINDS, False),
    (3, 1, 1, 4, model.KINDS, True),
    (3, 2, 2, 3, ("kill", "fail"), True),
    (3, 2, 2, 3, ("exit", "kill"), True),
    (2, 3, 1, 2, ("kill", "stop", "continue", "cut", "drain"), True),
    (3, 2, 2, 3, ("return", "kill", "last"), False),
    (2, 2, 1, 2, ("stop", "cut"), False),
    (1, 2, 1, 2, ("stop", "newcomer"), False),
    (1, 3, 1, 2, ("stop", "continue", "newcomer"), False),
]
LONGER = [
    (2, 2, 1, 3, ("kill", "stop", "newcomer"), False),
    (3, 2, 2, 3, ("kill", "stop"), True),
    (2, 2, 1, 3, ("exit", "newcomer"), False),
    (2, 3, 1, 2, ("promise", "drain", "kill"), True),
    (1, 3, 1, 3, ("stop", "evict", "newcomer"), True),
    (2, 3, 1, 2, ("drain", "stop", "newcomer"), True),
]
LARGE = [
    (2, 2, 1, 2, model.KINDS, False),
    (2, 3, 1, 2, (*MORE_KINDS, "shrink"), True),
    (2, 3, 1, 4, model.KINDS, True),
    (3, 1, 1, 3, model.KINDS, False),
    (3, 2, 2, 3, model.KINDS, True),
    (3, 2, 1, 4, model.KINDS, True),
    (4, 1, 2, 4, model.KINDS, True),
    (4, 2, 2, 4, ("kill", "stop"), True),
    (4, 3, 2, 4, ("kill",), True),
]

# workers, faults, kinds of faults, for workers whose first world trains; messages arrive at once
QUICK_TRAINING = [
    (3, 2, ("fail", "last")),
    (4, 1, ("kill", "continue", "evict")),
    (4, 1, ("exit",)),
]
LONGER_TRAINING = [
    (4, 3, ("kill", "fail", "stop")),
]
LARGE_TRAINING = [
    (4, 2, MORE_KINDS),
    (3, 3, MORE_KINDS),
    (4, 3, MOST_KINDS),
]

# Roster and slots together: workers, faults, least, most, kinds of faults, whether messages arrive at once
JOINED = [
    (1, 2, 1, 1, model.JOINED_KINDS, True),
    (2, 1, 1, 2, model.JOINED_KINDS, True),
    (2, 1, 2, 2, model.JOINED_KINDS, True),
    (2, 1, 1, 3, model.JOINED_KINDS, True),
    (2, 2, 1, 2, ("drain", "kill"), True),
]
LONGER_JOINED = [
    (2, 1, 1, 2, model.JOINED_KINDS, False),
    (2, 2, 1, 2, ("kill", "host", "stop"), True),
    (2, 2, 1, 2, ("exit", "last"), True),
]
LARGE_JOINED = [
    (2, 2, 2, 2, model.JOINED_KINDS, True),
    (2, 2, 1, 2, model.JOINED_KINDS, True),
    (3, 1, 2, 3, model.JOINED_KINDS, True),
    (3, 1, 1, 3, model.JOINED_KINDS, True),
]


@pytest.fixture(autouse=True)
def no_memory_of_other_jobs() -> None:
    model_roster.forget_decisions()


def explore(first: System, kinds: tuple[str, ...], prompt: bool = True) -> None:
    explorer = Explorer(first, kinds, prompt=prompt)
    explorer.run()
    print(f"{explorer.systems} systems, {explorer.transitions} transitions, {explorer.rests} at rest")
    assert explorer.rests


@pytest.mark.timeout(1200)  # Up to 20 s of processor time, however many others want it.
@pytest.mark.parametrize(("workers", "faults", "least", "most", "kinds", "prompt"), QUICK if BRIEF else QUICK + LONGER)
def test_every_interleaving_of_a_small_job_keeps_the_invariants(
    workers: int, faults: int, least: int, most: int, kinds: tuple[str, ...], prompt: bool
) -> None:
    explore(model.beginning(workers, Limits(least, most), faults), kinds, prompt)


@pytest.mark.timeout(1200)  # Up to 20 s of processor time, however many others want it.
@pytest.mark.parametrize(("workers", "faults", "kinds"), QUICK_TRAINING if BRIEF else QUICK_TRAINING + LONGER_TRAINING)
def test_every_interleaving_of_training_workers_keeps_the_invariants(
    workers: int, faults: int, kinds: tuple[str, ...]
) -> None:
    explore(model.training(workers, Limits(2, workers), faults), kinds)


@pytest.mark.skipif(not THOROUGH, reason=f"takes long; {HOW}")
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("workers", "faults", "least", "most", "kinds", "prompt"), LARGE)
def test_every_interleaving_of_a_larger_job_keeps_the_invariants(
    workers: int, faults: int, least: int, most: int, kinds: tuple[str, ...], prompt: bool
) -> None:
    explore(model.beginning(workers, Limits(least, most), faults), kinds, prompt)


@pytest.mark.skipif(not THOROUGH, reason=f"takes long; {HOW}")
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("workers", "faults", "kinds"), LARGE_TRAINING)
def test_every_interleaving_of_more_training_workers_keeps_the_invariants(
    workers: int, faults: int, kinds: tuple[str, ...]
) -> None:
    explore(model.training(workers, Limits(2, workers), faults), kinds)


@pytest.mark.parametrize("seed", range(2000 if THOROUGH else 20))
def test_long_random_jobs_keep_the_invariants(seed: int) -> None:
    faults = 300 if THOROUGH else 60
    model.simulate(seed, 4 + seed % 5, faults, Limits(1 + seed % 3, 3 + seed % 6))


@pytest.mark.parametrize("kinds", [("kill", "fail", "stop", "continue"), ("kill", "newcomer", "drain", "hang up")])
def test_roster_that_waits_for_many_workers_keeps_the_invariants(
    kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_world, "MANY", 0)
    explore(model.training(3, Limits(2, 3), 2), kinds)


# --- roster and slots together ----------------------------------------------------------------------------------------


@pytest.mark.timeout(1200)  # Up to 20 s of processor time, however many others want it.
@pytest.mark.parametrize(
    ("workers", "faults", "least", "most", "kinds", "prompt"), JOINED if BRIEF else JOINED + LONGER_JOINED
)
def test_every_interleaving_of_a_job_with_hosts_keeps_the_invariants(
    workers: int, faults: int, least: int, most: int, kinds: tuple[str, ...], prompt: bool
) -> None:
    explore(joined_decisions.beginning(workers, Limits(least, most), faults), kinds, prompt)


@pytest.mark.skipif(not ALL, reason="takes some minutes; set FARANDOLE_EXPLORE=all")
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("workers", "faults", "least", "most", "kinds", "prompt"), LARGE_JOINED)
def test_every_interleaving_of_a_larger_job_with_hosts_keeps_the_invariants(
    workers: int, faults: int, least: int, most: int, kinds: tuple[str, ...], prompt: bool
) -> None:
    explore(joined_decisions.beginning(workers, Limits(least, most), faults), kinds, prompt)


# Hosts that are slow to start; workers, faults, least, most, kinds of faults
SLOW_HOSTS = [
    (2, 2, 2, 2, ("return", "host")),
    (2, 3, 2, 2, ("return", "kill")),
    (3, 2, 2, 3, ("return",)),
]


@pytest.mark.parametrize(("workers", "faults", "least", "most", "kinds"), SLOW_HOSTS)
def test_every_interleaving_of_a_job_with_slow_hosts_keeps_the_invariants(
    workers: int, faults: int, least: int, most: int, kinds: tuple[str, ...]
) -> None:
    explore(joined_decisions.beginning(workers, Limits(least, most), faults, first_size=1), kinds)


def test_job_that_ends_with_its_first_worker_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        failure_rules, "_finished", lambda state, *place: (dataclasses.replace(state, finished=True), [], "ended")
    )
    with pytest.raises(Violation, match="ends well after too few"):
        explore(joined_decisions.beginning(2, Limits(2, 2), 2, first_size=1), ("return",))


def test_exclusion_of_the_last_worker_with_the_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_world, "_doubt", lambda state, here: "")
    with pytest.raises(Violation, match="the last worker with the state is excluded"):
        explore(joined_decisions.beginning(1, Limits(1, 2), 2), ("stop", "newcomer"))


@pytest.mark.parametrize(
    ("part", "broken"),
    [
        # The slots are not notified of new worlds, or of workers that have finished.
        ("_is_news", lambda before, state: False),
        # No worker that holds the state waits for the one that will replace a leaving worker.
        ("will_start", lambda state, now: False),
        ("world_began", lambda state, before, now: (state, [], "a world")),
    ],
)
def test_missing_notification_between_roster_and_slots_is_found(
    part: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined_decisions.joined, part, broken)
    with pytest.raises(Violation):
        explore(joined_decisions.beginning(2, Limits(1, 2), 2), ("drain",))


# --- correctness of the exploration ---------------------------------------------------------------------------------


class Comparing(Explorer):
    """Visits all unreduced systems, and checks that the same follows from the reduced form of each."""

    def following(self, system: System, key: bytes) -> list[Step]:
        found, rest = super().following(system, key), self.essence.of(system)
        real, left = self._essences(found), self._essences(super().following(rest, key))
        # Reports that change nothing lead to the same reduced system.
        assert real - {self.keys.key(rest)} <= left, self._way(key)
        assert left <= real or without_noise(system) != system, self._way(key)
        return found

    def _essences(self, found: list[Step]) -> set[bytes]:
        return {self.keys.key(self.essence.of(self.after(following))) for _, following in found}


@pytest.mark.parametrize(
    ("workers", "faults", "kinds", "prompt"),
    [
        (2, 1, model.KINDS, False),
        (2, 2, ("kill", "fail", "continue", "stop"), True),
        (3, 1, model.KINDS, True),
        (3, 2, ("kill", "fail", "stop"), True),
    ],
)
def test_reduction_of_systems_loses_nothing(workers: int, faults: int, kinds: tuple[str, ...], prompt: bool) -> None:
    first = model.beginning if workers == 2 or faults == 1 else model.training
    Comparing(first(workers, Limits(1, 3), faults), kinds, prompt=prompt, forgets=False).run()


def _counts_no_generations(state: ElasticState, actions: Actions, event: Event) -> tuple[ElasticState, Actions]:
    return replace(state, generation=max(1, state.generation - (state.generation > 2))), actions


def _forgets_answers(state: ElasticState, actions: Actions, event: Event) -> tuple[ElasticState, Actions]:
    waiting = {} if isinstance(event, Suspected) else state.waiting
    return replace(state, waiting=waiting), actions


def _forgets_a_refusal(state: ElasticState, actions: Actions, event: Event) -> tuple[ElasticState, Actions]:
    return state, tuple(each for each in actions if not isinstance(each, Refuse))


def _evicts_again(state: ElasticState, actions: Actions, event: Event) -> tuple[ElasticState, Actions]:
    return state, tuple(each for each in actions for _ in range(1 + isinstance(each, Evict)))


def _turns_the_order_round(state: ElasticState, actions: Actions, event: Event) -> tuple[ElasticState, Actions]:
    if state.generation < 2 or not any(isinstance(each, Announce) for each in actions):
        return state, actions
    turned = [replace(each, workers=each.workers[::-1]) if isinstance(each, Announce) else each for each in actions]
    return replace(state, members=state.members[::-1]), tuple(turned)


def _keeps_the_dead(state: ElasticState, actions: Actions, event: Event) -> tuple[ElasticState, Actions]:
    roll = {**state.hosts, event.worker: "h"} if isinstance(event, Finished) else state.hosts
    return replace(state, hosts=roll), actions


def _does_not_end(state: ElasticState, actions: Actions, event: Event) -> tuple[ElasticState, Actions]:
    return state, tuple(each for each in actions if not isinstance(each, End))


@pytest.mark.parametrize(
    "mistake",
    [
        _counts_no_generations,
        _forgets_answers,
        _forgets_a_refusal,
        _evicts_again,
        _turns_the_order_round,
        _keeps_the_dead,
        _does_not_end,
    ],
)
def test_injected_roster_fault_is_found(
    mistake: Callable[[ElasticState, Actions, Event], tuple[ElasticState, Actions]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(state: ElasticState, event: Event) -> Decision:
        state, actions, reason = model_decide(state, event)
        return *mistake(state, actions, event), reason

    model_decide = model_roster.decide
    monkeypatch.setattr(model_roster, "decide", decide)
    with pytest.raises(Violation):
        explore(model.training(3, Limits(2, 3), 2), ("kill", "stop", "continue"))


@pytest.mark.parametrize(
    ("rule", "broken", "workers"),
    [
        # The only holder of the state is stopped before a newcomer has it.
        ("_doubt", lambda state, here: "", 1),
        ("missing", lambda state: [], 3),
        ("_enough", lambda state, everyone: bool(everyone), 3),
        ("_most", lambda state, holders: 9, 3),
    ],
)
def test_disabled_rule_is_found(
    rule: str, broken: Callable[..., object], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_world, rule, broken)
    limits = Limits(min(workers, 2), max(workers, 2))
    with pytest.raises(Violation):
        explore(model.training(workers, limits, 3), ("kill", "stop", "continue", "cut", "newcomer"))
