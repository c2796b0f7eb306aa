"""Exponential back-off up to a limit."""

from __future__ import annotations

# Beyond 2**64, only the limit matters; and 2**1024 is not a valid float, which an outage of a day can reach.
_MOST_DOUBLINGS = 64


def rest(failures: int, first: float, longest: float) -> float:
    """Return the seconds to wait after a failure.

    Args:
        failures: number of failures before this one.
        first: seconds after the first failure.
        longest: the limit, in seconds.

    Example:
        >>> [rest(failures, 0.5, 30.0) for failures in (0, 1, 2, 5000)]
        [0.5, 1.0, 2.0, 30.0]
    """
    return min(first * 2.0 ** min(failures, _MOST_DOUBLINGS), longest)
