"""Least loaded: the node of which the largest part is free, then the next, so that jobs disturb each other least."""

from __future__ import annotations

from farandole.control.scheduler.cluster import Allocation, FreeSlots
from farandole.control.scheduler.placement.by_node import fill


def place(free: FreeSlots, type_: str, slots: int) -> Allocation | None:
    """Return an allocation on the least loaded nodes; None if not enough is free."""
    return fill(free, type_, slots, lambda open_, all_, _: -open_ / all_)
