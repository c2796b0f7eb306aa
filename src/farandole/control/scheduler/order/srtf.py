"""Shortest remaining time first, with suspension.

Of a job whose duration nobody knows, the remaining time is taken to be what it has had: half of the jobs that have run
for so long are expected to run for as long again (the rule of Lindy, which holds where run times have a Pareto tail).
"""

from __future__ import annotations

from collections.abc import Sequence

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import JobView
from farandole.control.scheduler.rules import Rules


def rank(cluster: Cluster, jobs: Sequence[JobView], now: float, rules: Rules) -> Sequence[JobView]:
    """Return the jobs with the shortest remaining times first; of equal ones, those that run."""

    def key(job: JobView) -> tuple[float, bool]:
        remaining = job.remaining(now)
        return (job.ran(now) if remaining is None else remaining), job.allocation is None

    return sorted(jobs, key=key)
