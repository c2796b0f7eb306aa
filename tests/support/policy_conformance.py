"""What conformance tests of policies have in common: decisions that are recorded, and the simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import Decision, PolicyJob
from farandole.control.scheduler.policies import make_policy
from farandole.control.scheduler.policy import Policy
from farandole.control.scheduler.rules import Rules
from farandole.control.simulator.job_trace import TraceJob, Workload
from farandole.control.simulator.setup import Options, simulate

POLICIES = ("fcfs", "easy", "conservative", "sjf", "srtf", "rr", "priority", "preempt", "fair", "edf", "adaptive")

Told = list[tuple[float, dict[str, Any]]]
"""At which time which jobs have which slots."""


@dataclass
class Recording:
    """A policy that records what it is asked and what it says."""

    policy: Policy
    resizes: bool = False
    asked: list[tuple[float, tuple[PolicyJob, ...], Decision]] = field(default_factory=list)

    def decide(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        decision = self.policy.decide(cluster, jobs, now)
        self.asked.append((now, tuple(sorted(jobs, key=lambda job: job.name)), decision))
        return decision


def simulated(policy: str, cluster: Cluster, jobs: Workload, rules: Rules) -> Recording:
    """Return what a policy decides in a simulation in which everything happens at once."""
    recording = Recording(make_policy(policy, rules))
    simulate(cluster, jobs, {}, recording, Options(interval=0.0, restart=0.0, predictions="given"))
    return recording


def as_submitted(job: TraceJob) -> dict[str, Any]:
    """Return how a user submits a job of a trace, with its work in slot-seconds."""
    assert job.run_time is not None and job.deadline is not None
    return {
        "work": job.run_time * job.slots,
        "workers": job.slots,
        "queue": job.queue,
        "priority": job.priority,
        "duration": job.requested_time,
        "deadline": job.deadline - job.submitted,
        "checkpoint": "/c",
    }


def news(told: Iterable[tuple[float, dict[str, Any]]], digits: int) -> Told:
    """Return the last decision of each moment, where it says something new.

    Args:
        told: decisions.
        digits: of seconds, to which two moments are the same.
    """
    last = {round(now, digits): slots for now, slots in told}
    found: Told = []
    for now, slots in sorted(last.items()):
        if slots and (not found or found[-1][1] != slots):
            found.append((now, slots))
    return found
