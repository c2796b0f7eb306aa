"""With many jobs and nodes, decisions take little work and stay the same."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from schedules import random_jobs, run, view

from farandole.control.scheduler.adaptive.solve import EXACT, Choice, solve
from farandole.control.scheduler.admission.conservative import PLANNED, FreeOverTime
from farandole.control.scheduler.cluster import Allocation, Cluster, FreeSlots, parse_cluster
from farandole.control.scheduler.job import Decision, PolicyJob
from farandole.control.scheduler.jobs import Jobs
from farandole.control.scheduler.placement.by_node import fill
from farandole.control.scheduler.policies import make_policy


class FromScratch:
    """Asks a policy about the jobs that a simulation keeps, and about a list of them, and compares the decisions."""

    resizes = False

    def __init__(self, name: str) -> None:
        self._policy = make_policy(name)

    def decide(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        decision = self._policy.decide(cluster, jobs, now)
        assert self._policy.decide(cluster, list(jobs)[::-1], now) == decision
        return decision


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative", "srtf", "rr", "fair", "equal"])
def test_cached_jobs_give_the_same_decisions(policy: str) -> None:
    run(random_jobs(3, 60, exact=False), FromScratch(policy), "a:4x1,b:2x4")


def test_free_slots_are_right_after_any_update() -> None:
    cluster, random_ = parse_cluster("a:3x2,b:2x4"), random.Random(4)
    jobs, known = Jobs(cluster), dict[str, PolicyJob]()
    for _ in range(300):
        name = f"job-{random_.randrange(12)}"
        if random_.random() < 0.2:
            jobs.remove(name)
            known.pop(name, None)
            continue
        had = known.get(name) or view(name, submitted=float(random_.randrange(5)))
        free = [node for node, count in enumerate(jobs.free.free) if count]
        node = random_.choice(free) if free and random_.random() < 0.6 else None
        allocation = None if node is None else Allocation(cluster.nodes[node].type, ((node, 1),))
        known[name] = replace(had, allocation=allocation)
        jobs.update([known[name]])
        anew = Jobs(cluster, known.values())
        assert jobs.free == anew.free and list(jobs.waiting.items()) == list(anew.waiting.items())
        assert jobs.running == anew.running and not jobs.unseated and len(jobs) == len(known)


def test_job_whose_slots_vanished_is_placed_again() -> None:
    two = [view(name, 3, allocation=Allocation("slot", ((0, 3),))) for name in "ab"]
    assert Jobs(parse_cluster("1x4"), two).unseated == {"b"}
    assert set(make_policy("fcfs").decide(parse_cluster("1x4"), two, 0.0).allocations) == {"a"}
    moved = make_policy("fcfs").decide(parse_cluster("2x4"), two, 0.0).allocations
    assert moved["a"].parts == ((0, 3),) and moved["b"].parts == ((1, 3),)


def test_placement_computes_key_once_for_equal_nodes() -> None:
    asked = 0

    def key(open_: int, all_: int, wanted: int) -> float:
        nonlocal asked
        asked += 1
        return -open_

    cluster = parse_cluster("2000x1")
    allocation = fill(FreeSlots(cluster), "slot", 300, key)
    assert allocation is not None and [node for node, _ in allocation.parts] == list(range(300))
    assert asked <= 2 * 300


@pytest.mark.parametrize("seed", range(5))
def test_earliest_start_equals_exhaustive_search(seed: int) -> None:
    random_, future, taken = random.Random(seed), FreeOverTime(0.0, 8), list[tuple[int, int, int]]()
    for _ in range(60):
        slots, seconds = random_.randint(1, 8), random_.randint(1, 9)
        start = future.earliest(slots, seconds)

        def free(time: int) -> int:
            return 8 - sum(count for begin, end, count in taken if begin <= time < end)

        fits = (at for at in range(700) if all(free(at + more) >= slots for more in range(seconds)))
        assert start == next(fits)
        future.take(start, start + seconds, slots)
        taken.append((int(start), int(start) + seconds, slots))
    future.take(0.0, math.inf, 8)
    assert future.earliest(1, 1.0) == math.inf


def test_conservative_plans_a_bounded_number_of_jobs() -> None:
    has = view("runs", 8, duration=1000.0, allocation=Allocation("slot", ((0, 4), (1, 4))))
    waits = [view(f"job-{index:04}", 1, 1.0 + index, duration=10.0) for index in range(PLANNED + 1)]
    reasons = make_policy("conservative").decide(parse_cluster("2x4"), [has, *waits], 0.0).reasons
    assert "starts in about" in reasons[waits[-2].name]
    assert reasons[waits[-1].name] == f"waits behind {PLANNED} waiting jobs"


@pytest.mark.parametrize("types", [1, 2, 4])
def test_prices_give_nearly_optimal_choices(types: int) -> None:
    random_ = random.Random(types)
    choices = []
    for number in range(1200):
        weight, power = random_.uniform(0.2, 5), random_.uniform(0.3, 0.95)
        for type_ in range(types):
            speed = random_.uniform(1, 4)
            choices += [
                Choice(number, str(type_), count, weight * speed * float(count) ** power) for count in (1, 2, 4, 8, 16)
            ]
    slots = {str(type_): 900 // types for type_ in range(types)}
    assert len(choices) > EXACT
    picked = [choices[index] for index in solve(choices, slots)]
    assert len({choice.job for choice in picked}) == len(picked)
    for name, free in slots.items():
        assert free - 8 <= sum(choice.slots for choice in picked if choice.type == name) <= free
    assert sum(choice.value for choice in picked) >= 0.999 * _relaxed(choices, slots)
    kept = set(sorted({choice.job for choice in choices} - {choice.job for choice in picked})[:3])
    assert kept <= {choices[index].job for index in solve(choices, slots, kept=kept)}


def _relaxed(choices: Sequence[Choice], slots: dict[str, int]) -> float:
    """Return the value of the linear relaxation, which no whole choices exceed."""
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    number = {type_: 1200 + row for row, type_ in enumerate(slots)}
    at = np.arange(len(choices))
    rows = np.concatenate([[one.job for one in choices], [number[one.type] for one in choices]])
    entries = np.concatenate([np.ones(len(choices)), [one.slots for one in choices]])
    matrix = csr_array((entries, (rows, np.concatenate([at, at]))))
    upper = [1.0] * 1200 + list(slots.values())
    return -float(linprog([-one.value for one in choices], matrix, upper).fun)
