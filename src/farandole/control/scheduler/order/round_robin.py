"""Round robin: each job has a time slice, then those that have waited longest have their turn.

A slice begins when the job makes progress: one that is shorter than a restart would otherwise be spent on restarts.
"""

from __future__ import annotations

from collections.abc import Sequence

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import JobView
from farandole.control.scheduler.rules import Rules


def rank(cluster: Cluster, jobs: Sequence[JobView], now: float, rules: Rules) -> Sequence[JobView]:
    """Return running jobs within their slices, then what waits, the longest first, then those whose slice is over."""

    def key(job: JobView) -> tuple[int, float]:
        if job.allocation is None:
            return 1, job.account.since
        return (2 if now >= _slice_end(job, rules) else 0), job.account.since

    return sorted(jobs, key=key)


def review_at(jobs: Sequence[JobView], now: float, rules: Rules) -> float | None:
    """Return when the next slice is over, or in a slice if all that run have had theirs; None if nobody waits."""
    running = [_slice_end(job, rules) for job in jobs if job.allocation is not None]
    if len(running) == len(jobs):
        return None
    return min((end for end in running if end > now), default=now + rules.quantum)


def _slice_end(job: JobView, rules: Rules) -> float:
    """Return when the slice of a running job is over."""
    return max(job.account.since, job.restarting_until) + rules.quantum
