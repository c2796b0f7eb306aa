"""Where gradients live: flat buckets in the arena, so that collectives use them without copying.

One bucket for each element type. Gradients lie in it in reverse order of their registration, which is about the order
in which a backward pass finishes them; what is ready together lies together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from farandole.worker.core.dtype import DType

# A cache line, and the widest vector.
ALIGNMENT = 64


class Layout(NamedTuple):
    """The memory of one gradient, whose elements are contiguous, in C order."""

    dtype: DType
    shape: tuple[int, ...]
    nbytes: int


class Placement(NamedTuple):
    """Where one gradient lies."""

    number: int
    """Of the gradient, in the order of the plan's input."""
    offset: int
    """In bytes from the bucket's beginning; a multiple of `ALIGNMENT`."""


class Bucket(NamedTuple):
    """The plan of one bucket."""

    dtype: DType
    size: int
    """In bytes."""
    placements: tuple[Placement, ...]


def plan_buckets(layouts: Sequence[Layout]) -> list[Bucket]:
    """Return where each gradient should lie. Empty ones lie nowhere."""
    by_dtype: dict[DType, list[Placement]] = {}
    sizes: dict[DType, int] = {}
    for index, layout in reversed(list(enumerate(layouts))):
        if layout.nbytes == 0:
            continue
        offset = sizes.get(layout.dtype, 0)
        by_dtype.setdefault(layout.dtype, []).append(Placement(index, offset))
        sizes[layout.dtype] = -(-(offset + layout.nbytes) // ALIGNMENT) * ALIGNMENT
    return [Bucket(dtype, sizes[dtype], tuple(placements)) for dtype, placements in by_dtype.items()]
