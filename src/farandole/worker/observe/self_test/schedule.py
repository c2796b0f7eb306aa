"""The order in which pairs are measured, and the amount of data for each measurement."""

from __future__ import annotations

import itertools

MOST_ALONE = 8
"""Up to this number of nodes, every pair is measured while all others are silent."""

LARGEST_MESSAGE = 4 << 20
_SMALLEST_MESSAGE = 64 << 10
_MOST_MESSAGES = 8


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Return every pair of nodes, the lower one first, in rounds: the pairs of a round are measured at once.

    Up to `MOST_ALONE` nodes, a round is one pair. With more, the rounds are a tournament: in each round, every node is
    in one pair (with an odd number of nodes, one pauses).

    Example:
        >>> rounds(3)
        [[(0, 1)], [(0, 2)], [(1, 2)]]
    """
    if nodes <= MOST_ALONE:
        return [[pair] for pair in itertools.combinations(range(nodes), 2)]
    # The circle method: one stays, the others move on by one place; whatever is opposite is the partner.
    seats = list(range(nodes + nodes % 2))
    tournament = []
    for _ in range(len(seats) - 1):
        couples = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        tournament.append([(min(couple), max(couple)) for couple in couples if max(couple) < nodes])
        seats.insert(1, seats.pop())
    return tournament


def messages(rate: float, seconds: float) -> tuple[int, int]:
    """Return the size and the number of messages that a link of this speed carries in a given time.

    Args:
        rate: the approximate bytes per second.
        seconds: the time limit in seconds.

    Example:
        >>> messages(1e6, 0.1)
        (100000, 1)
        >>> messages(1e9, 0.02)
        (4194304, 4)
    """
    amount = int(rate * seconds)
    size = min(LARGEST_MESSAGE, max(_SMALLEST_MESSAGE, amount))
    return size, min(_MOST_MESSAGES, max(1, amount // size))
