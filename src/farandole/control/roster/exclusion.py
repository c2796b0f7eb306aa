"""Which workers are left out of a world when some of its members cannot be connected with each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def workers_to_leave_out(
    members: Sequence[int], holders: Collection[int], cut: Collection[frozenset[int]]
) -> list[int]:
    """Return the workers to leave out so that all pairs of the rest can be connected.

    Workers that do not hold the job's state go first, so that one that does always stays; then the worker that is in
    most of the pairs; among equals, the one with the highest rank.

    Args:
        members: by rank.
        holders: those of them that hold the job's state and are to stay.
        cut: pairs that cannot be connected.

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
