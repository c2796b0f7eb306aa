"""How long to rest before something is tried again: each time twice as long as before, up to a limit."""

from __future__ import annotations

# Beyond 2**64, only the limit counts; and from 2**1024 on there is no such float, which an outage of a day can reach.
_MOST_DOUBLINGS = 64


def rest(failures: int, first: float, longest: float) -> float:
    """Return the seconds to rest.

    Args:
        failures: how many there were before this one.
        first: seconds after the first failure.
        longest: the limit.

    Example:
        >>> [rest(failures, 0.5, 30.0) for failures in (0, 1, 2, 5000)]
        [0.5, 1.0, 2.0, 30.0]
    """
    return min(first * 2.0 ** min(failures, _MOST_DOUBLINGS), longest)
