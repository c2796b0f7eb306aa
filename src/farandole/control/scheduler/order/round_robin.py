"""Round robin: each job runs for a time slice, then the jobs that have waited longest run.

A slice begins when the job makes progress: a slice shorter than a restart would otherwise be spent on the restart.
"""

from __future__ import annotations

from collections.abc import Sequence

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.rules import Rules


def rank(cluster: Cluster, jobs: Sequence[PolicyJob], now: float, rules: Rules) -> Sequence[PolicyJob]:
    """Return running jobs within their slices, then waiting jobs by waiting time, then jobs whose slice is over."""

    def key(job: PolicyJob) -> tuple[int, float]:
        if job.allocation is None:
            return 1, job.account.since
        return (2 if now >= _slice_end(job, rules) else 0), job.account.since

    return sorted(jobs, key=key)


def review_at(jobs: Sequence[PolicyJob], now: float, rules: Rules) -> float | None:
    """Return the end of the next slice; if all running jobs have used theirs, a slice from now; None: no job waits."""
    running = [_slice_end(job, rules) for job in jobs if job.allocation is not None]
    if len(running) == len(jobs):
        return None
    return min((end for end in running if end > now), default=now + rules.quantum)


def _slice_end(job: PolicyJob, rules: Rules) -> float:
    """Return the time when the slice of a running job is over."""
    return max(job.account.since, job.restarting_until) + rules.quantum
