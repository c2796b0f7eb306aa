"""The expected start of a job, as text."""

from __future__ import annotations

import math


def expected_start(start: float, now: float) -> str:
    """Return the latest start of a job as the end of a sentence."""
    if math.isinf(start):
        return "; its start is unknown, because the durations of running jobs are"
    minutes = math.ceil((start - now) / 60)
    return f"; starts in about {minutes} min" if minutes < 180 else f"; starts in about {minutes / 60:.0f} h"
