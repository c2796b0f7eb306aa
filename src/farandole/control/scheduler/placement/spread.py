"""Spread: slots one by one, each on the node with the most free slots, so that the loss of a node costs least."""

from __future__ import annotations

import heapq

from farandole.control.scheduler.cluster import Allocation, FreeSlots


def place(free: FreeSlots, type_: str, slots: int) -> Allocation | None:
    """Return an allocation over as many nodes as possible; None if not enough slots are free."""
    if free.of_type[type_] < slots:
        return None
    heap = [(-free.free[index], index) for index in free.cluster.indices_of[type_]]
    heapq.heapify(heap)
    parts: dict[int, int] = {}
    for _ in range(slots):
        open_, index = heap[0]
        parts[index] = parts.get(index, 0) + 1
        heapq.heapreplace(heap, (open_ + 1, index))
    return Allocation(type_, tuple(sorted(parts.items())))
