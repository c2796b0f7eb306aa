"""First come, first served: the order of submission."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import JobView
from farandole.control.scheduler.rules import Rules


def rank(cluster: Cluster, jobs: Sequence[JobView], now: float, rules: Rules) -> Sequence[JobView]:
    """Return jobs in the order of submission, in which they come."""
    return jobs
