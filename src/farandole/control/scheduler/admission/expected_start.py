"""Sentences about waiting."""

from __future__ import annotations

import math


def expected_start(start: float, now: float) -> str:
    """Return the end of a sentence that says when a job starts at the latest."""
    if math.isinf(start):
        return "; when it starts is unknown, because durations of running jobs are"
    minutes = math.ceil((start - now) / 60)
    return f"; starts in about {minutes} min" if minutes < 180 else f"; starts in about {minutes / 60:.0f} h"
