"""Choosing nodes one by one in the order of a key, which placements share."""

from __future__ import annotations

from collections.abc import Callable

from farandole.control.scheduler.cluster import Allocation, FreeSlots

Place = Callable[[FreeSlots, str, int], Allocation | None]
"""A placement: takes the free slots, the type and the number of slots; returns the allocation, or None if not enough
slots are free."""

NodeKey = Callable[[int, int, int], float]
"""Sort key of a node: takes its free slots, all its slots, and the slots that are still wanted."""


def fill(free: FreeSlots, type_: str, slots: int, key: NodeKey) -> Allocation | None:
    """Return an allocation that fills nodes one by one in the order of a key; None if not enough slots are free."""
    if free.of_type[type_] < slots:
        return None
    alike = _alike(free, type_)
    parts: list[tuple[int, int]] = []
    wanted = slots
    while wanted:
        kind = min(alike, key=lambda kind: (key(kind[0], kind[1], wanted), alike[kind][-1]))
        parts.append((alike[kind].pop(), min(wanted, kind[0])))
        wanted -= parts[-1][1]
        if not alike[kind]:
            del alike[kind]
    return Allocation(type_, tuple(sorted(parts)))


def _alike(free: FreeSlots, type_: str) -> dict[tuple[int, int], list[int]]:
    """Return the nodes of a type with free slots, grouped by their free slots and all slots, the first node last.

    The key is equal for all nodes of a group, so it is computed once for each group.
    """
    alike: dict[tuple[int, int], list[int]] = {}
    nodes, open_slots = free.cluster.nodes, free.free
    for index in sorted(free.open[type_], reverse=True):
        alike.setdefault((open_slots[index], nodes[index].slots), []).append(index)
    return alike
