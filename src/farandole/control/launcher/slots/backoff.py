"""The waiting time before a failed attempt is repeated, which grows with each failure."""

from __future__ import annotations

FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0


def waiting_time(failures_before: int) -> float:
    """Return the seconds to wait after a failure: none after the first, then 1, 2, 4 ... 60."""
    return 0.0 if failures_before == 0 else min(FIRST_WAIT * 2.0 ** (failures_before - 1), LONGEST_WAIT)
