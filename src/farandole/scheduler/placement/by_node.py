"""Choosing nodes one after the other, which all placements have in common."""

from __future__ import annotations

from collections.abc import Callable

from farandole.scheduler.cluster import Allocation, FreeSlots

Place = Callable[[FreeSlots, str, int], Allocation | None]
"""A placement: from what is free, the type and the number of slots to an allocation; None if not enough is free."""

NodeKey = Callable[[int, int, int], float]
"""From the numbers of free slots, of all slots and of wanted slots of a node: which node comes first, the smallest."""


def fill(free: FreeSlots, type_: str, slots: int, key: NodeKey) -> Allocation | None:
    """Return an allocation that uses up one node after the other, in the order of a key; None if not enough is free."""
    if free.of_type[type_] < slots:
        return None
    nodes = free.cluster.nodes
    parts: list[tuple[int, int]] = []
    wanted = slots
    open_nodes = [index for index in free.cluster.indices_of[type_] if free.free[index]]
    while wanted:
        best = min(open_nodes, key=lambda index: (key(free.free[index], nodes[index].slots, wanted), index))
        open_nodes.remove(best)
        parts.append((best, min(wanted, free.free[best])))
        wanted -= parts[-1][1]
    return Allocation(type_, tuple(sorted(parts)))
