"""Pack: as few nodes as possible, with the fewest free slots that suffice, so that whole nodes stay free."""

from __future__ import annotations

from farandole.control.scheduler.cluster import Allocation, FreeSlots
from farandole.control.scheduler.placement.by_node import fill


def place(free: FreeSlots, type_: str, slots: int) -> Allocation | None:
    """Return an allocation on the fewest nodes; None if not enough slots are free."""
    return fill(free, type_, slots, lambda open_, _, wanted: open_ if open_ >= wanted else 1e6 - open_)
