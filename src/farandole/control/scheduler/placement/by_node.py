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
    # Nodes with the same numbers of slots have the same key. How many of each kind are taken:
    alike = free.alike[type_]
    taken = dict.fromkeys(alike, 0)
    parts: list[tuple[int, int]] = []
    wanted = slots
    while wanted:
        kind = min(taken, key=lambda kind: (key(kind[0], kind[1], wanted), alike[kind][taken[kind]]))
        parts.append((alike[kind][taken[kind]], min(wanted, kind[0])))
        wanted -= parts[-1][1]
        taken[kind] += 1
        if taken[kind] == len(alike[kind]):
            del taken[kind]
    return Allocation(type_, tuple(sorted(parts)))
