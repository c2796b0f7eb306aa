"""Priority with ageing: the priority of a waiting job rises by one every `ageing` seconds.

All jobs age alike, so the order of two jobs never changes: the effective priority is `priority - submitted / ageing`,
up to a term that is the same for all. A job of priority p is overtaken only by jobs submitted at most
`ageing * (q - p)` seconds later, where q is the highest priority, so no job starves.
"""

from __future__ import annotations

from collections.abc import Sequence

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.rules import Rules


def rank(cluster: Cluster, jobs: Sequence[PolicyJob], now: float, rules: Rules) -> Sequence[PolicyJob]:
    """Return the jobs with the highest aged priorities first."""
    return sorted(jobs, key=lambda job: job.submitted / rules.ageing - job.priority)
