"""Choice of the workers that are left out of a world when some of its members cannot connect to each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def workers_to_leave_out(
    members: Sequence[int], holders: Collection[int], cut: Collection[frozenset[int]]
) -> list[int]:
    """Return the workers to leave out so that every pair of the others can connect.

    A greedy vertex cover: workers that do not hold the job's state are left out first, so that a holder always stays;
    then the worker that is in the most pairs; among equals, the one of the highest rank.

    Args:
        members: workers by rank.
        holders: members that hold the job's state and are to stay.
        cut: pairs of workers that cannot connect to each other.

    Example:
        >>> workers_to_leave_out([7, 8, 9], {7, 8, 9}, [frozenset({7, 8}), frozenset({7, 9})])
        [7]
    """
    left = set(cut)
    out = []
    while left:
        worst = max(
            (worker for worker in members if any(worker in pair for pair in left)),
            key=lambda worker: (
                worker not in holders,
                sum(worker in pair for pair in left),
                members.index(worker),
            ),
        )
        out.append(worst)
        left = {pair for pair in left if worst not in pair}
    return out
