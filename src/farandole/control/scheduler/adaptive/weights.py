"""How much a job counts beside others: by its priority and age, its queues' weights, and its deadline.

The value of each size (see `policy`) is multiplied by

    2^(priority - highest)     each step of priority counts double. In each `ageing` seconds since its submission a job
                               gains a step, up to the highest priority among the jobs that are there: jobs of one
                               priority count alike, however old
    weight of its queue, and of all queues above it
    4                          for sizes with which it meets its deadline, once that is no longer certain
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from farandole.control.scheduler.job import JobView
from farandole.control.scheduler.room import lineage
from farandole.control.scheduler.rules import Rules

_STEP = 2.0
"""How much a step of priority counts."""
_DEADLINE = 4.0
"""How much a size counts that meets a deadline."""


def weights(jobs: Sequence[JobView], now: float, rules: Rules) -> list[float]:
    """Return the weights of jobs, by priority, age and queue, in their order; 1 if nothing tells them apart."""
    highest = max((job.priority for job in jobs), default=0)
    return [
        _STEP ** (min(0.0, job.priority + max(0.0, now - job.submitted) / rules.ageing - highest))
        * math.prod(rules.queue(name).weight for name in lineage(job.queue, rules))
        for job in jobs
    ]


def by_deadline(ends: Sequence[float], deadline: float | None, slack: float) -> list[float]:
    """Return the factors of sizes with which a job would end at some moments.

    Args:
        slack: seconds by which a deadline is met for certain; then it changes nothing.
    """
    if deadline is None or max(ends, default=0.0) + slack <= deadline:
        return [1.0] * len(ends)
    return [_DEADLINE if end <= deadline else 1.0 for end in ends]
