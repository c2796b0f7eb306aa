"""The memory of gradients: flat buckets in the arena or on a GPU, so that collectives use them without copying.

A bucket has one element type. Gradients are stored in it in reverse order of their registration, which is roughly the
order in which a backward pass finishes them, so that gradients that are ready together are adjacent.
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
    """The place of one gradient in a bucket."""

    number: int
    """The number of the gradient, in the order of the plan's input."""
    offset: int
    """The offset in bytes from the bucket's beginning; a multiple of `ALIGNMENT`."""


class Bucket(NamedTuple):
    """The plan of one bucket."""

    dtype: DType
    size: int
    """The size of the bucket in bytes."""
    placements: tuple[Placement, ...]


def plan_buckets(layouts: Sequence[Layout], limits: Sequence[int] = ()) -> list[Bucket]:
    """Return the bucket and the place of each gradient. Empty gradients have none.

    Args:
        layouts: the layouts of the gradients.
        limits: the maximum sizes, in bytes, of the first, second, ... bucket of an element type; the last one also
            applies to all further buckets. A larger gradient is alone in its bucket. Without limits, there is one
            bucket of each type.
    """
    plans: list[tuple[DType, list[Placement]]] = []
    sizes: list[int] = []
    # For each type, the number of its buckets, and the place of the last one.
    last: dict[DType, tuple[int, int]] = {}
    for index, layout in reversed(list(enumerate(layouts))):
        if layout.nbytes == 0:
            continue
        count, place = last.get(layout.dtype, (0, 0))
        is_full = count > 0 and bool(limits) and sizes[place] + layout.nbytes > limits[min(count, len(limits)) - 1]
        if count == 0 or is_full:
            place = len(plans)
            last[layout.dtype] = count + 1, place
            plans.append((layout.dtype, []))
            sizes.append(0)
        plans[place][1].append(Placement(index, sizes[place]))
        sizes[place] = -(-(sizes[place] + layout.nbytes) // ALIGNMENT) * ALIGNMENT
    return [Bucket(dtype, size, tuple(places)) for (dtype, places), size in zip(plans, sizes, strict=True)]
