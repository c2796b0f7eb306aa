"""Least loaded: nodes with the largest free fraction first, so that jobs interfere least with each other."""

from __future__ import annotations

from farandole.control.scheduler.cluster import Allocation, FreeSlots
from farandole.control.scheduler.placement.by_node import fill


def place(free: FreeSlots, type_: str, slots: int) -> Allocation | None:
    """Return an allocation on the least loaded nodes; None if not enough slots are free."""
    return fill(free, type_, slots, lambda open_, all_, _: -open_ / all_)
