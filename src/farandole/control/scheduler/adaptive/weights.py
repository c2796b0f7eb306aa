"""Weights of jobs: by priority and age, weights of queues, and deadline.

The value of each size (see `policy`) is multiplied by

    2^(priority - highest)     each step of priority doubles the weight. A job gains a step every `ageing` seconds since
                               its submission, up to the highest priority of all present jobs, so jobs of that priority
                               count alike, however old they are
    weight of its queue, and of the queue's ancestors
    4                          for sizes with which it meets its deadline, once that is no longer certain
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.room import lineage
from farandole.control.scheduler.rules import Rules

_STEP = 2.0
"""Factor of one step of priority."""
_DEADLINE = 4.0
"""Factor of a size that meets a deadline."""


def weights(jobs: Sequence[PolicyJob], now: float, rules: Rules) -> list[float]:
    """Return the weight of each job by priority, age and queue, in the order of `jobs`."""
    highest = max((job.priority for job in jobs), default=0)
    return [
        _STEP ** (min(0.0, job.priority + max(0.0, now - job.submitted) / rules.ageing - highest))
        * math.prod(rules.queue(name).weight for name in lineage(job.queue, rules))
        for job in jobs
    ]


def by_deadline(ends: Sequence[float], deadline: float | None, slack: float) -> list[float]:
    """Return the factors of sizes with which a job would end at given times.

    Args:
        ends: predicted end of the job with each size, in seconds.
        deadline: deadline of the job in seconds; None: none.
        slack: margin in seconds; if all sizes meet the deadline with this margin, all factors are 1.
    """
    if deadline is None or max(ends, default=0.0) + slack <= deadline:
        return [1.0] * len(ends)
    return [_DEADLINE if end <= deadline else 1.0 for end in ends]
