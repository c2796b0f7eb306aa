"""What must hold for any jobs: nothing is lost or given twice, names do not matter, promises are kept."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from schedules import ends, random_jobs, run, starts

from farandole.control.scheduler.cluster import Cluster, parse_cluster
from farandole.control.scheduler.job import Decision, PolicyJob
from farandole.control.scheduler.policies import POLICIES, make_policy
from farandole.control.scheduler.rules import Queue, Rules
from farandole.control.simulator import synthetic
from farandole.control.simulator.job_trace import TraceJob, Workload
from farandole.control.simulator.oracle import make_oracle
from farandole.control.simulator.profiles import applications_of
from farandole.control.simulator.setup import Options, simulate

SIMPLE = [name for name, row in POLICIES.items() if row.parts]
RULES = Rules(quantum=200.0, ageing=400.0)


@pytest.mark.parametrize("policy", [*SIMPLE, "sjf+easy+spread", "preempt+conservative"])
@pytest.mark.parametrize("seed", range(3))
def test_all_jobs_complete_and_no_work_is_lost(policy: str, seed: int) -> None:
    jobs = random_jobs(seed)
    # The simulation itself checks at each decision that no slot is given twice.
    outcome = run(jobs, policy, rules=RULES)
    work = {job.name: (job.run_time or 0.0) * job.slots for job in jobs}
    for job in outcome.jobs:
        assert job.completed is not None and job.view.account.started is not None
        assert job.view.account.started >= job.view.submitted
        assert job.slot_seconds == pytest.approx(work[job.view.name])


@pytest.mark.parametrize("policy", SIMPLE)
def test_renaming_jobs_changes_no_decision(policy: str) -> None:
    jobs = [replace(job, submitted=job.submitted + index / 1000) for index, job in enumerate(random_jobs(7))]
    shuffled = [f"x{number:03}" for number in range(len(jobs))]
    random.Random(1).shuffle(shuffled)
    other = {job.name: name for job, name in zip(jobs, shuffled, strict=True)}
    renamed = [replace(job, name=other[job.name]) for job in jobs]
    expected = {other[name]: end for name, end in ends(run(jobs, policy, rules=RULES)).items()}
    assert ends(run(renamed, policy, rules=RULES)) == expected


def test_more_slots_never_hurt_fcfs_with_equal_jobs() -> None:
    jobs = [TraceJob(f"job-{index}", float(index), 2, run_time=100.0) for index in range(30)]
    makespans = [max(ends(run(jobs, "fcfs", f"{nodes}x4")).values()) for nodes in range(1, 9)]
    assert makespans == sorted(makespans, reverse=True)
    assert makespans[-1] < makespans[0]


class Promises:
    """Watches what EASY promises the first job that waits, and when it started."""

    resizes = False

    def __init__(self) -> None:
        self._policy = make_policy("easy")
        self.broken: list[str] = []
        self._promise: dict[str, float] = {}

    def decide(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        decision = self._policy.decide(cluster, jobs, now)
        waiting = sorted((job.submitted, job.name) for job in jobs if job.name not in decision.allocations)
        for name, latest in self._promise.items():
            late = any(job == name for _, job in waiting) and now > latest + 1e-6
            self.broken += [f"{name} waits at {now}, and was promised {latest}"] if late else []
        if waiting:
            head = next(job for job in jobs if job.name == waiting[0][1])
            granted = [job for job in jobs if job.name in decision.allocations]
            ends = sorted((now + (job.remaining(now) or 0.0), job.slots) for job in granted)
            free = cluster.slots - sum(job.slots for job in granted)
            for end, slots in ends:
                free += slots
                if free >= head.slots:
                    self._promise[head.name] = min(self._promise.get(head.name, end), end)
                    break
        return decision


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("exact", [True, False])
def test_backfill_never_delays_the_head(seed: int, exact: bool) -> None:
    watched = Promises()
    run(random_jobs(seed, 80, exact=exact), watched)
    assert watched.broken == []


@pytest.mark.parametrize("seed", range(3))
def test_conservative_backfill_delays_no_job_beyond_fcfs(seed: int) -> None:
    jobs = random_jobs(seed, 60)
    fcfs, conservative = starts(run(jobs, "fcfs")), starts(run(jobs, "conservative"))
    assert all(conservative[name] <= fcfs[name] + 1e-6 for name in fcfs)
    assert sum(conservative.values()) < sum(fcfs.values())


class Shares:
    """Watches how many slots each user has when all of them want more."""

    resizes = False

    def __init__(self) -> None:
        self._policy = make_policy("fair")
        self.differences: list[int] = []

    def decide(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        decision = self._policy.decide(cluster, jobs, now)
        has = {job.user: 0 for job in jobs}
        for job in jobs:
            has[job.user] += decision.allocations[job.name].slots if job.name in decision.allocations else 0
        waiting = {job.user for job in jobs if job.name not in decision.allocations}
        if len(has) > 1 and waiting == set(has):
            self.differences.append(max(has.values()) - min(has.values()))
        return decision


def test_fair_share_stays_within_bounds() -> None:
    # Up to one job by turns; the rest goes to any user with a job that fits.
    watched = Shares()
    most = 3
    run([replace(job, queue="default") for job in random_jobs(3, 120, most=most)], watched, "4x4")
    assert watched.differences and max(watched.differences) <= most + (most - 1)


def test_quota_is_available_at_once() -> None:
    greedy = [TraceJob(f"red-{index:02}", 0.0, 2, run_time=500.0, queue="red") for index in range(20)]
    late = TraceJob("blue", 100.0, 4, run_time=50.0, queue="blue")
    rules = Rules(queues={"red": Queue("red", quota=4), "blue": Queue("blue", quota=4)})
    assert starts(run([*greedy, late], "fair", rules=rules))["blue"] == 100.0


def test_adaptive_jobs_finish_earlier_than_rigid_ones() -> None:
    applications = applications_of(synthetic.profiles())
    jobs = [
        TraceJob(f"job-{index}", 600.0 * index, 1, "digits", 256, category="rigid" if index == 1 else "adaptive")
        for index in range(4)
    ]
    results = {}
    for policy in ("fcfs", "adaptive", "adaptive+spread+strict"):
        for attempt in range(2):
            made = make_policy(policy)
            outcome = simulate(parse_cluster("fast:1x8"), Workload("w", tuple(jobs)), applications, made, Options())
            end = ends(outcome)
            assert results.setdefault(policy, end) == end, f"attempt {attempt} differs"
            # Whatever happened to it, a job has made all of its progress.
            assert all(job.work.done for job in outcome.jobs)
    sums = {policy: sum(end[job.name] - job.submitted for job in jobs) for policy, end in results.items()}
    assert sums["adaptive"] < 0.8 * sums["fcfs"]
    assert sums["adaptive"] <= sums["adaptive+spread+strict"]


def test_history_predicts_and_profiles_are_shared() -> None:
    applications = applications_of(synthetic.profiles())
    jobs = [TraceJob(f"job-{index}", 3000.0 * index, 4, "digits", 1024) for index in range(3)]
    workload, cluster = Workload("w", tuple(jobs)), parse_cluster("fast:1x8")
    restarts = {}
    for predictions in ("given", "profiles"):
        outcome = simulate(cluster, workload, applications, make_policy("adaptive"), Options(predictions=predictions))
        restarts[predictions] = [job.view.account.restarts for job in outcome.jobs]
        last = outcome.jobs[-1].view
        assert (last.known is not None) == (last.total_progress is not None) == (predictions == "profiles")
    # The first job has to find out how it scales, by growing; the last one is told.
    assert restarts["given"][0] == restarts["profiles"][0] >= 2
    assert restarts["profiles"][-1] < restarts["given"][-1]
    truth = simulate(cluster, workload, applications, make_policy("srtf"), Options(predictions="truth")).jobs[0].view
    assert truth.duration and truth.total_progress == applications["digits"].convergence.thresholds[-1]


def test_ageing_bounds_starvation() -> None:
    # Jobs of a higher priority keep coming, and would fill the cluster for ever.
    stream = [TraceJob(f"high-{index:03}", 50.0 * index, 8, run_time=50.0, priority=2) for index in range(100)]
    low = TraceJob("low", 10.0, 8, run_time=50.0, priority=0)
    ageing = 300.0
    aged = starts(run([*stream, low], "priority", rules=Rules(ageing=ageing)))["low"]
    never = starts(run([*stream, low], "priority", rules=Rules(ageing=1e9)))["low"]
    assert aged <= 10.0 + 2 * ageing + 50.0
    assert never == 5000.0


def test_round_robin_bounds_waiting() -> None:
    long = [TraceJob(f"long-{index}", 0.0, 8, run_time=5000.0) for index in range(3)]
    outcome = starts(run([*long, TraceJob("short", 1.0, 8, run_time=10.0)], "rr", rules=Rules(quantum=100.0)))
    assert outcome["short"] <= 300.0 + 1e-6


def test_oracle_predicts_without_exploring() -> None:
    applications = applications_of(synthetic.profiles())
    jobs = [TraceJob(f"job-{index}", 600.0 * index, 4, "digits", 256, category="adaptive") for index in range(4)]
    workload, cluster = Workload("w", tuple(jobs)), parse_cluster("fast:1x8")
    oracle = simulate(cluster, workload, applications, make_oracle(workload, applications, cluster, Rules()), Options())
    plain = simulate(cluster, workload, applications, make_policy("adaptive"), Options(predictions="given"))
    assert all(job.completed is not None and job.work.done for job in oracle.jobs)
    # It starts with the size that suits, where the other has to double its way up.
    assert sum(job.view.account.restarts for job in oracle.jobs) < sum(job.view.account.restarts for job in plain.jobs)
    waits = {name: end - job.submitted for job, (name, end) in zip(jobs, sorted(ends(oracle).items()), strict=True)}
    assert sum(waits.values()) < sum(end - job.submitted for job, end in zip(jobs, ends(plain).values(), strict=True))
    # What jobs themselves report, and other policies see, has nothing of the truth.
    assert all(len(job.view.report.measured["fast"]) < 40 for job in oracle.jobs if job.view.report is not None)


def test_oracle_handles_jobs_with_fixed_run_times() -> None:
    jobs = random_jobs(3, 15)
    workload, cluster = Workload("w", tuple(sorted(jobs, key=lambda job: job.submitted))), parse_cluster("2x4")
    outcome = simulate(cluster, workload, {}, make_oracle(workload, {}, cluster, Rules()), Options(interval=0.0))
    assert all(job.completed is not None for job in outcome.jobs)
