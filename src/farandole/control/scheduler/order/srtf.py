"""Shortest remaining time first, with suspension.

The remaining time of a job of unknown duration is assumed to equal its run time so far: half of the jobs that have run
this long are expected to run as long again (Lindy's law, which holds for run times with a Pareto tail).
"""

from __future__ import annotations

from collections.abc import Sequence

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.rules import Rules


def rank(cluster: Cluster, jobs: Sequence[PolicyJob], now: float, rules: Rules) -> Sequence[PolicyJob]:
    """Return the jobs with the shortest remaining times first; among equals, running jobs first."""

    def key(job: PolicyJob) -> tuple[float, bool]:
        remaining = job.remaining(now)
        return (job.ran(now) if remaining is None else remaining), job.allocation is None

    return sorted(jobs, key=key)
