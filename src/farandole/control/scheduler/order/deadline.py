"""Earliest deadline first; jobs without a deadline come last."""

from __future__ import annotations

import math
from collections.abc import Sequence

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.rules import Rules


def rank(cluster: Cluster, jobs: Sequence[PolicyJob], now: float, rules: Rules) -> Sequence[PolicyJob]:
    """Return the jobs with the earliest deadlines first."""
    return sorted(jobs, key=lambda job: math.inf if job.deadline is None else job.deadline)
