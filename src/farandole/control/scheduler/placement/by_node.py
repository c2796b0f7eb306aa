"""Choosing nodes one after the other, which all placements have in common."""

from __future__ import annotations

from collections.abc import Callable

from farandole.control.scheduler.cluster import Allocation, FreeSlots

Place = Callable[[FreeSlots, str, int], Allocation | None]
"""A placement: from what is free, the type and the number of slots to an allocation; None if not enough is free."""

NodeKey = Callable[[int, int, int], float]
"""From the numbers of free slots, of all slots and of wanted slots of a node: which node comes first, the smallest."""


def fill(free: FreeSlots, type_: str, slots: int, key: NodeKey) -> Allocation | None:
    """Return an allocation that uses up one node after the other, in the order of a key; None if not enough is free."""
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
    """Return the nodes of a type with free slots by the numbers of their free and of all slots, the first node last.

    A key does not tell nodes with equal numbers apart, so that it is asked once for all of them.
    """
    alike: dict[tuple[int, int], list[int]] = {}
    nodes, open_slots = free.cluster.nodes, free.free
    for index in sorted(free.open[type_], reverse=True):
        alike.setdefault((open_slots[index], nodes[index].slots), []).append(index)
    return alike
