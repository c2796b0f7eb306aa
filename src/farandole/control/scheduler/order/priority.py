"""Priority, with ageing: a job that waits gains one step of priority in each `ageing` seconds.

All jobs age alike, so that the order of two jobs never changes: the effective priority is `priority - submitted /
ageing`, but for a term that is the same for all. A job of priority p is overtaken only by jobs submitted at most
`ageing * (q - p)` seconds later, with q the highest priority: nothing starves.
"""

from __future__ import annotations

from collections.abc import Sequence

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import JobView
from farandole.control.scheduler.rules import Rules


def rank(cluster: Cluster, jobs: Sequence[JobView], now: float, rules: Rules) -> Sequence[JobView]:
    """Return the jobs with the highest aged priorities first."""
    return sorted(jobs, key=lambda job: job.submitted / rules.ageing - job.priority)
