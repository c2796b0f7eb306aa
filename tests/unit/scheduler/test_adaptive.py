"""The adaptive policy: its models, its solver and its decisions."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from schedules import view

from farandole.control.scheduler.account import Account
from farandole.control.scheduler.adaptive.candidates import sizes
from farandole.control.scheduler.adaptive.goodput import GoodputModel, gain
from farandole.control.scheduler.adaptive.policy import Adaptive
from farandole.control.scheduler.adaptive.solve import Choice, solve
from farandole.control.scheduler.adaptive.throughput import ThroughputModel
from farandole.control.scheduler.cluster import Allocation, parse_cluster
from farandole.control.scheduler.job import BatchLimits, Measurement, Noise, PolicyJob, TrainingReport

CLUSTER = parse_cluster("slow:4x4,fast:2x8")
LIMITS = BatchLimits(64, 4096, {"slow": (8, 256), "fast": (8, 512)})
NOISE = Noise(1.0, 20.0)


def step(type_: str, nodes: int, workers: int, local: float) -> Measurement:
    """Return a measurement in a world that the model describes exactly."""
    compute = (0.02 + 0.001 * local) * (1.0 if type_ == "slow" else 0.4)
    network = 0.0 if workers == 1 else (0.3 if nodes > 1 else 0.03) * 2 * (workers - 1) / workers
    total = (compute**1.6 + network**1.6) ** (1 / 1.6)
    return Measurement(nodes, workers, local, total, total - compute)


PROFILE = {type_: tuple(step(type_, 1, 1, local) for local in (8.0, 64.0, 256.0)) for type_ in ("slow", "fast")}


def report(*measured: Measurement, progress: float = 0.0) -> TrainingReport:
    return TrainingReport(LIMITS, {"slow": measured}, PROFILE, NOISE, progress)


def job(name: str, submitted: float = 0.0, **more: object) -> PolicyJob:
    """Return an elastic job that reports its profile."""
    settings = {"min_slots": 1, "max_slots": 16, "report": report(), "restart_cost": 30.0, **more}
    return view(name, 4, submitted, **settings)


def test_throughput_model_is_exact_for_measured_configurations() -> None:
    measured = [step("slow", 1, 4, 64.0), step("slow", 1, 4, 128.0), step("slow", 2, 8, 64.0)]
    model = ThroughputModel(report(*measured))
    for row in measured:
        compute, time = model.times("slow", [(row.nodes, row.workers)], np.array([[row.local]]))
        assert compute[0, 0] == pytest.approx(row.step - row.sync)
        assert time[0, 0] == pytest.approx(row.step)


def test_throughput_model_predicts_other_sizes_and_types() -> None:
    model = ThroughputModel(report(step("slow", 1, 2, 64.0), step("slow", 2, 8, 64.0)))
    for nodes, workers in ((1, 3), (1, 4), (4, 16)):
        expected = step("slow", nodes, workers, 128.0).step
        assert model.times("slow", [(nodes, workers)], np.array([[128.0]]))[1][0, 0] == pytest.approx(
            expected, rel=0.05
        )
    # On the other type, all-reduce is taken to be as slow as here, compared with compute.
    compute, time = model.times("fast", [(1, 2)], np.array([[64.0]]))
    slow = step("slow", 1, 2, 64.0)
    assert time[0, 0] / compute[0, 0] == pytest.approx(slow.step / (slow.step - slow.sync), rel=0.05)


def test_type_with_one_measured_batch_size_depends_on_it_like_another_type() -> None:
    told = replace(report(), one_slot={"slow": PROFILE["slow"], "fast": PROFILE["fast"][-1:]})
    local = np.array([[8.0, 64.0, 256.0]])
    compute, _ = ThroughputModel(told).times("fast", [(1, 1)], local)
    assert compute[0] == pytest.approx([step("fast", 1, 1, each).step for each in local[0]])


def test_other_batch_sizes_than_the_only_measured_one_are_expected_to_be_favourable() -> None:
    told = replace(report(), one_slot={"slow": PROFILE["slow"][1:2]})
    before, at, after = ThroughputModel(told).times("slow", [(1, 1)], np.array([[32.0, 64.0, 128.0]]))[0][0]
    assert before == pytest.approx(at * 0.55) and after == pytest.approx(at * 1.5)


def test_job_that_ran_with_one_worker_is_assumed_to_scale() -> None:
    one, four = GoodputModel(report()).goodputs("slow", [(1, 1), (1, 4)])
    assert one < four <= 4 * one


def test_gain_and_the_best_batch() -> None:
    assert gain(NOISE, np.array([1.0, 1e9])) == pytest.approx([1.0, 21.0])
    assert gain(None, np.array([8.0])) == pytest.approx([1.0])
    model = GoodputModel(report(step("slow", 1, 4, 64.0)))
    best = model.best("slow", 1, 4)
    assert best is not None
    for batch in (64, 512, 4096):
        assert best.goodput >= model.__class__(model.report).goodputs("slow", [(1, 4)], batch)[0] * 0.999
    assert best.local * (best.accumulated + 1) * 4 <= LIMITS.largest
    one = model.best("slow", 1, 1)
    assert one is not None and (one.accumulated >= 1 or one.local == LIMITS.initial)
    assert model.best("slow", 100, 1000) is None


def brute_force(choices: list[Choice], slots: dict[str, int]) -> float:
    """Return the largest value of all combinations."""
    by_job = [[None, *group] for _, group in itertools.groupby(choices, key=lambda choice: choice.job)]
    best = 0.0
    for picked in itertools.product(*by_job):
        used = [choice for choice in picked if choice is not None]
        if all(sum(one.slots for one in used if one.type == type_) <= free for type_, free in slots.items()):
            best = max(best, sum(one.value for one in used))
    return best


@pytest.mark.parametrize("seed", range(20))
def test_the_solver_is_exact(seed: int) -> None:
    random_ = random.Random(seed)
    slots = {"a": random_.randint(2, 8), "b": random_.randint(2, 8)}
    choices = [
        Choice(number, random_.choice("ab"), random_.randint(1, 6), random_.uniform(0.1, 2))
        for number in range(6)
        for _ in range(random_.randint(1, 5))
    ]
    picked = [choices[index] for index in solve(choices, slots)]
    assert len({choice.job for choice in picked}) == len(picked)
    assert sum(choice.value for choice in picked) == pytest.approx(brute_force(choices, slots), rel=1e-3)


def large(jobs: int, nodes: int, seed: int = 0) -> tuple[list[Choice], dict[str, int]]:
    random_ = random.Random(seed)
    counts = (1, 2, 4, 8, 16, 24, 32)
    choices = []
    for number in range(jobs):
        weight, power = random_.uniform(0.2, 5), random_.uniform(0.3, 0.95)
        for type_, speed in (("a", 1.0), ("b", random_.uniform(1, 4))):
            choices += [Choice(number, type_, count, weight * speed * float(count) ** power) for count in counts]
    return choices, {"a": nodes * 4, "b": nodes * 4}


def test_solver_is_nearly_exact_for_large_problems() -> None:
    choices, slots = large(400, 60)
    picked = solve(choices, slots)
    for type_, free in slots.items():
        assert sum(choices[index].slots for index in picked if choices[index].type == type_) <= free
    value = sum(choices[index].value for index in picked)
    # The whole may be split as one likes; no sum of whole choices is larger than this bound.
    assert value >= 0.99 * relaxed(choices, slots)


def relaxed(choices: list[Choice], slots: dict[str, int]) -> float:
    """Return an upper bound of the value: the Lagrangian with the best prices of a grid."""
    bound = float("inf")
    values = np.array([choice.value for choice in choices])
    counts = {type_: np.array([one.slots * (one.type == type_) for one in choices]) for type_ in slots}
    jobs = np.array([choice.job for choice in choices])
    for prices in itertools.product(np.geomspace(1.0, 40.0, 60), repeat=2):
        net = values - sum(price * counts[type_] for price, type_ in zip(prices, slots, strict=True))
        best = np.zeros(jobs.max() + 1)
        np.maximum.at(best, jobs, net)
        total = best.sum() + sum(price * free for price, free in zip(prices, slots.values(), strict=True))
        bound = min(bound, float(total))
    return bound


def test_candidate_sizes_cause_no_fragmentation() -> None:
    assert [one.slots for one in sizes(CLUSTER, "slow", 64)] == [1, 2, 4, 8, 12, 16]
    assert [one.slots for one in sizes(CLUSTER, "fast", 8)] == [1, 2, 4, 8]


def test_job_grows_at_most_fourfold_at_once() -> None:
    policy = Adaptive()
    assert policy.decide(CLUSTER, [job("a")], 60.0).allocations["a"].slots == 1
    ran = job("a", largest_run=1, report=report(progress=100.0))
    assert policy.decide(CLUSTER, [ran], 120.0).allocations["a"].slots == 4


@pytest.mark.parametrize(
    ("taken", "least", "most", "gets"),
    [(0, 3, 8, 4), (0, 5, 7, 5), (0, 6, 8, 8), (2, 6, 8, 6), (5, 3, 8, 3), (0, 8, 16, 8), (0, 9, 16, 0)],
)
def test_job_starts_with_any_minimum_of_workers(taken: int, least: int, most: int, gets: int) -> None:
    cluster = parse_cluster("2x4")
    new = job("a", min_slots=least, max_slots=most, report=None)
    parts = tuple((node, count) for node, count in enumerate((min(taken, 4), max(0, taken - 4))) if count)
    stays = view("b", taken, allocation=Allocation("slot", parts), preemptible=False)
    decision = Adaptive().decide(cluster, [new, stays] if taken else [new], now=0.0)
    has = decision.allocations.get("a")
    assert (0 if has is None else has.slots) == gets


def test_gain_below_cost_of_restart_does_not_resize() -> None:
    has = Allocation("slow", ((0, 4),))
    measured = report(step("slow", 1, 4, 64.0), step("slow", 2, 8, 64.0), progress=5000.0)
    one = job("a", largest_run=4, report=measured, allocation=has)
    moves = Adaptive().decide(CLUSTER, [replace(one, restart_cost=0.05)], 60.0).allocations["a"]
    stays = Adaptive().decide(CLUSTER, [replace(one, restart_cost=1100.0)], 60.0).allocations["a"]
    assert moves.type == "fast" and stays == has


def test_job_that_was_restarted_often_keeps_its_slots() -> None:
    has = Allocation("slow", ((0, 4),))
    measured = report(step("slow", 1, 4, 64.0), step("slow", 2, 8, 64.0), progress=5000.0)
    one = job("a", largest_run=4, report=measured, allocation=has, restart_cost=170.0)
    seldom, often = (Account(4, since=2400.0, started=0.0, ran_before=2400.0, restarts=count) for count in (2, 25))
    moves = Adaptive().decide(CLUSTER, [replace(one, account=seldom)], 3600.0).allocations["a"]
    stays = Adaptive().decide(CLUSTER, [replace(one, account=often)], 3600.0).allocations["a"]
    assert moves.type == "fast" and stays == has


def test_decision_has_best_batch_for_the_slots() -> None:
    measured = report(step("slow", 1, 2, 64.0), progress=100.0)
    jobs = [
        job("free", largest_run=2, report=measured),
        job("fixed", 1.0, largest_run=2, report=measured, batch=64),
        job("new", 2.0, report=replace(measured, noise=None)),
        view("silent", 1, duration=100.0),
    ]
    decision = Adaptive().decide(CLUSTER, jobs, 60.0)
    assert decision.allocations.keys() == {"free", "fixed", "new", "silent"}
    assert decision.batches.keys() == {"free"}, "the others have fixed theirs, or know too little of their gradients"
    has = decision.allocations["free"]
    best = GoodputModel(measured).best(has.type, len(has.parts), has.slots)
    assert best is not None and decision.batches["free"] == best.local * (best.accumulated + 1) * has.slots
    assert LIMITS.initial < decision.batches["free"] <= LIMITS.largest


def test_rigid_jobs_and_those_that_must_stay() -> None:
    rigid = view("rigid", 6, report=report(), batch=512)
    kept = job("kept", allocation=Allocation("fast", ((4, 2),)), preemptible=False)
    silent = view("silent", 3, duration=100.0)
    decision = Adaptive().decide(CLUSTER, [rigid, kept, silent], 60.0)
    assert decision.allocations["rigid"].slots == 6
    assert decision.allocations["kept"] == kept.allocation
    assert decision.allocations["silent"].slots == 3


def test_job_without_candidate_size_gets_reason() -> None:
    rigid = view("rigid", 16, report=report(), batch=64)
    decision = Adaptive().decide(CLUSTER, [rigid, view("huge", 17), job("a")], 60.0)
    assert decision.allocations.keys() == {"a"}
    assert decision.reasons["rigid"] == (
        "can never start: its batch cannot be split over 16 workers on any type of node"
    )
    assert decision.reasons["huge"] == "can never start: it needs 17 slots of one type, and no type has more than 16"


def test_decisions_do_not_depend_on_earlier_decisions() -> None:
    measured = report(step("slow", 1, 2, 64.0), step("slow", 1, 4, 32.0), progress=300.0)
    jobs = [job(f"job-{index}", float(index), largest_run=4, report=measured) for index in range(12)]
    policy = Adaptive()
    first = policy.decide(CLUSTER, jobs, 100.0)
    policy.decide(CLUSTER, jobs[:3], 160.0)
    assert policy.decide(CLUSTER, jobs[::-1], 100.0) == first == Adaptive().decide(CLUSTER, jobs, 100.0)
    used = sum(allocation.slots for allocation in first.allocations.values())
    assert used <= CLUSTER.slots and set(first.reasons) == {one.name for one in jobs}
