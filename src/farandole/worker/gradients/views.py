"""Views: the pieces of memory in which gradients are stored, and from which they are sent."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from farandole.worker.core.engine import Engine
from farandole.worker.gradients.buckets import ALIGNMENT, Layout, plan_buckets

Buffer = ctypes.Array[ctypes.c_char]


class View(NamedTuple):
    """A piece of writable memory, which is initially zero."""

    buffer: Any
    """The memory that the piece is a part of. It supports the buffer protocol, and keeps the memory alive."""
    offset: int
    """The offset in bytes from the beginning of the buffer."""
    nbytes: int

    @property
    def address(self) -> int:
        """Return the address of the piece."""
        return ctypes.addressof(self.buffer) + self.offset

    def bytes(self) -> memoryview:
        """Return the piece itself, as bytes that can be read and written."""
        return memoryview(self.buffer).cast("B")[self.offset : self.offset + self.nbytes]


def allocate(engine: Engine, layouts: Sequence[Layout]) -> list[View]:
    """Return a view for each layout: in the arena or, if it is full, in ordinary memory."""
    nothing, _ = _ordinary(0)
    views = [View(nothing, 0, 0)] * len(layouts)
    for bucket in plan_buckets(layouts):
        block = engine.allocate(bucket.size)
        buffer, begin = _ordinary(bucket.size) if block is None else (block.buffer(), 0)
        for index, offset in bucket.placements:
            views[index] = View(buffer, begin + offset, layouts[index].nbytes)
    return views


def _ordinary(size: int) -> tuple[Buffer, int]:
    """Return zeroed memory, and the offset of an aligned piece of this size in it."""
    buffer = (ctypes.c_char * (size + ALIGNMENT))()
    return buffer, -ctypes.addressof(buffer) % ALIGNMENT
