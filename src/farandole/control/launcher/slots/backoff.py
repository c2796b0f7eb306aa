"""How long to wait before what has failed is tried again: longer each time."""

from __future__ import annotations

FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0


def waiting_time(failures_before: int) -> float:
    """Return how long to wait after a failure: nothing after the first, then 1, 2, 4 ... 60 seconds."""
    return 0.0 if failures_before == 0 else min(FIRST_WAIT * 2.0 ** (failures_before - 1), LONGEST_WAIT)
