"""Figures of a simulation: completion and waiting times, utilisation of the cluster, fairness, restarts."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from farandole.control.scheduler.cluster import Cluster
from farandole.control.simulator.simulation import SimulationOutcome


@dataclass(frozen=True)
class JobResult:
    """The result of one job. Times are in seconds from the beginning of the trace."""

    workload: str
    name: str
    application: str
    submitted: float
    started: float
    completed: float
    ran: float
    """Seconds with slots."""
    slot_seconds: float
    restarts: int
    alone: float
    """Run time in seconds with the requested slots, alone in the cluster."""
    fair: float
    """Run time in seconds with an equal share of the cluster among all jobs that were present at the time."""

    @property
    def completion(self) -> float:
        """Seconds from submission to completion (JCT)."""
        return self.completed - self.submitted

    @property
    def waited(self) -> float:
        """Seconds from submission to completion without slots."""
        return max(0.0, self.completion - self.ran)

    @property
    def fairness(self) -> float:
        """Finish-time fairness: ratio of the completion time to that with an equal share (Themis, NSDI '20)."""
        return self.completion / self.fair if self.fair else 1.0


def job_results(
    workload: str, cluster: Cluster, outcome: SimulationOutcome, alone: Mapping[str, float]
) -> list[JobResult]:
    """Return the result of each job that was completed.

    The fair time is the time alone, multiplied by the ratio of the requested slots to an equal share of the cluster.
    The number of jobs that share the cluster is the mean over the job's life.
    """
    contention = _Contention([(job.view.submitted, job.completed or outcome.decided) for job in outcome.jobs])
    results = []
    for job in outcome.jobs:
        view = job.view
        if job.completed is None:
            continue
        assert view.account.started is not None and view.allocation is not None
        share = cluster.slots / contention.mean(view.submitted, job.completed)
        fair = alone[view.name] * max(1.0, view.slots / share)
        results.append(
            JobResult(
                workload,
                view.name,
                view.application,
                view.submitted,
                view.account.started,
                job.completed,
                view.ran(job.completed),
                job.slot_seconds,
                view.account.restarts,
                alone[view.name],
                fair,
            )
        )
    return results


class _Contention:
    """The integral of the number of present jobs over time, from which means over periods are computed."""

    def __init__(self, lives: Sequence[tuple[float, float]]) -> None:
        events = sorted([(start, 1) for start, _ in lives] + [(end, -1) for _, end in lives])
        self._times, self._areas, self._counts = [0.0], [0.0], [0]
        for time, change in events:
            self._areas.append(self._areas[-1] + self._counts[-1] * (time - self._times[-1]))
            self._times.append(time)
            self._counts.append(self._counts[-1] + change)

    def mean(self, start: float, end: float) -> float:
        if end <= start:
            return 1.0
        return max(1.0, (self._area(end) - self._area(start)) / (end - start))

    def _area(self, time: float) -> float:
        index = bisect_right(self._times, time) - 1
        return self._areas[index] + self._counts[index] * (time - self._times[index])


@dataclass(frozen=True)
class Summary:
    """The figures of one policy. Times are in seconds."""

    policy: str
    jobs: int
    average: float
    median: float
    p99: float
    waiting: float
    waiting_p99: float
    makespan: float
    """Makespan; the mean if there are several workloads."""
    utilisation: float
    """Fraction of all slots that jobs held, from the first submission to the last completion."""
    slot_hours: float
    """Slot-hours for each job."""
    fairness: float
    fairness_worst: float
    restarts: float
    """Restarts for each job."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(policy: str, cluster: Cluster, workloads: Sequence[Sequence[JobResult]]) -> Summary:
    """Return the figures over the jobs of all workloads together."""
    jobs = [job for workload in workloads for job in workload]
    completion = sorted(job.completion for job in jobs)
    waited = sorted(job.waited for job in jobs)
    fairness = sorted(job.fairness for job in jobs)
    makespans = [
        max(job.completed for job in workload) - min(job.submitted for job in workload) for workload in workloads
    ]
    held = math.fsum(job.slot_seconds for job in jobs)
    return Summary(
        policy=policy,
        jobs=len(jobs),
        average=_mean(completion),
        median=quantile(completion, 0.5),
        p99=quantile(completion, 0.99),
        waiting=_mean(waited),
        waiting_p99=quantile(waited, 0.99),
        makespan=_mean(makespans),
        utilisation=min(1.0, held / (cluster.slots * math.fsum(makespans))) if math.fsum(makespans) else 0.0,
        slot_hours=held / 3600 / len(jobs),
        fairness=_mean(fairness),
        fairness_worst=fairness[-1],
        restarts=_mean([job.restarts for job in jobs]),
    )


def quantile(values: Sequence[float], part: float) -> float:
    """Return a quantile of sorted values: the element with index int(part * n)."""
    return values[min(len(values) - 1, int(part * len(values)))]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
