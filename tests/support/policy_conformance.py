"""The common part of conformance tests of policies: recording of decisions, and the simulation."""

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
"""Decisions: time, and the slots of each job."""


@dataclass
class Recording:
    """A policy that records its inputs and decisions."""

    policy: Policy
    resizes: bool = False
    asked: list[tuple[float, tuple[PolicyJob, ...], Decision]] = field(default_factory=list)

    def decide(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        decision = self.policy.decide(cluster, jobs, now)
        self.asked.append((now, tuple(sorted(jobs, key=lambda job: job.name)), decision))
        return decision


def simulated(policy: str, cluster: Cluster, jobs: Workload, rules: Rules) -> Recording:
    """Return the decisions of a policy in a simulation without delays."""
    recording = Recording(make_policy(policy, rules))
    simulate(cluster, jobs, {}, recording, Options(interval=0.0, restart=0.0, predictions="given"))
    return recording


def as_submitted(job: TraceJob) -> dict[str, Any]:
    """Return the user's submission of a job of a trace, with its work in slot-seconds."""
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
    """Return the last decision at each time, if it differs from the previous one.

    Args:
        told: the decisions.
        digits: the number of decimal digits of seconds at which two times count as equal.
    """
    last = {round(now, digits): slots for now, slots in told}
    found: Told = []
    for now, slots in sorted(last.items()):
        if slots and (not found or found[-1][1] != slots):
            found.append((now, slots))
    return found
