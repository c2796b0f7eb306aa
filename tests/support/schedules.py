"""Small clusters and jobs to schedule, and simulations of jobs with fixed run times."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from farandole.control.scheduler.account import Account
from farandole.control.scheduler.cluster import Allocation, Cluster, parse_cluster
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.policies import make_policy
from farandole.control.scheduler.policy import Policy
from farandole.control.scheduler.rules import Rules
from farandole.control.simulator.job_trace import TraceJob, Workload
from farandole.control.simulator.setup import Options, simulate
from farandole.control.simulator.simulation import SimulationOutcome

ROOT = Path(__file__).resolve().parents[2]


def published_traces() -> Path:
    """Return the archive of the published profiles and workloads, or skip the test."""
    place = Path(os.environ.get("FARANDOLE_TRACES") or ROOT.parent / "shared" / "traces" / "profiles.tar.xz")
    if not place.exists():
        pytest.skip(f"the published traces are not there: {place}, or where FARANDOLE_TRACES says")
    return place


def view(name: str, slots: int = 1, submitted: float = 0.0, **more: object) -> PolicyJob:
    """Return a rigid job that waits."""
    job = PolicyJob(name, submitted, slots, slots, slots, account=Account(since=submitted))
    return replace(job, **more)  # type: ignore[arg-type]


def given(job: PolicyJob, allocation: Allocation, since: float = 0.0) -> PolicyJob:
    """Return a job that has had its first allocation since a given time."""
    return replace(job, allocation=allocation, account=Account().changed(allocation.slots, since))


def random_jobs(seed: int, count: int = 40, most: int = 4, exact: bool = True) -> list[TraceJob]:
    """Return jobs with random sizes, times, priorities, queues and users; `exact`: users know their run times."""
    random_ = random.Random(seed)
    jobs = []
    for index in range(count):
        seconds = float(random_.randint(10, 900))
        jobs.append(
            TraceJob(
                name=f"job-{index:03}",
                submitted=float(random_.randint(0, 1500)),
                slots=random_.randint(1, most),
                run_time=seconds,
                requested_time=seconds if exact else seconds * random_.uniform(1, 4),
                priority=random_.randint(0, 3),
                queue=random_.choice(["red", "blue"]),
                user=random_.choice(["ann", "bob", "eve"]),
                deadline=random_.choice([None, float(random_.randint(1000, 9000))]),
            )
        )
    return jobs


def run(
    jobs: Sequence[TraceJob],
    policy: str | Policy,
    cluster: str | Cluster = "2x4",
    rules: Rules | None = None,
    options: Options | None = None,
) -> SimulationOutcome:
    """Simulate jobs under a policy, with immediate decisions and the durations that users gave."""
    ordered = tuple(sorted(jobs, key=lambda job: (job.submitted, job.name)))
    made = make_policy(policy, rules) if isinstance(policy, str) else policy
    built = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    return simulate(built, Workload("test", ordered), {}, made, options or Options(interval=0.0, predictions="given"))


def starts(outcome: SimulationOutcome) -> dict[str, float]:
    """Return the time of each job's first start."""
    return {job.view.name: job.view.account.started for job in outcome.jobs if job.view.account.started is not None}


def ends(outcome: SimulationOutcome) -> dict[str, float]:
    """Return the time at which each job was complete."""
    return {job.view.name: job.completed for job in outcome.jobs if job.completed is not None}
