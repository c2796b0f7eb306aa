"""Where gradients live: flat buckets in the arena, so that collectives use them without copying.

One bucket for each element type. Parameters lie in it in reverse order of their registration, which is about the order
in which a backward pass finishes their gradients; what is ready together lies together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from farandole.core.engine import Engine

# A cache line, and the widest vector.
ALIGNMENT = 64


class Placement(NamedTuple):
    """Where one tensor lies."""

    tensor: int
    """Which tensor of the plan's input."""
    offset: int
    """In bytes from the bucket's beginning; a multiple of `ALIGNMENT`."""


class Bucket(NamedTuple):
    """The plan of one bucket."""

    dtype: torch.dtype
    size: int
    """In bytes."""
    placements: tuple[Placement, ...]


def plan_buckets(tensors: Sequence[torch.Tensor]) -> list[Bucket]:
    """Return where each tensor should lie. Empty tensors have no place."""
    by_dtype: dict[torch.dtype, list[Placement]] = {}
    sizes: dict[torch.dtype, int] = {}
    for index, tensor in reversed(list(enumerate(tensors))):
        if tensor.numel() == 0:
            continue
        offset = sizes.get(tensor.dtype, 0)
        by_dtype.setdefault(tensor.dtype, []).append(Placement(index, offset))
        end = offset + tensor.numel() * tensor.element_size()
        sizes[tensor.dtype] = -(-end // ALIGNMENT) * ALIGNMENT
    return [Bucket(dtype, sizes[dtype], tuple(placements)) for dtype, placements in by_dtype.items()]


def allocate(engine: Engine, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return zeros like each tensor: in the arena, or in ordinary memory where the arena is full.

    Each result keeps its bucket alive, and the engine with it.
    """
    places = [torch.zeros(tensor.shape, dtype=tensor.dtype) if tensor.numel() == 0 else None for tensor in tensors]
    for bucket in plan_buckets(tensors):
        block = engine.allocate(bucket.size)
        buffer = None if block is None else block.buffer()
        for index, offset in bucket.placements:
            shape = tensors[index].shape
            if buffer is None:
                places[index] = torch.zeros(shape, dtype=bucket.dtype)
            else:
                # A storage of its own, not a slice of one: saving one gradient must not save the whole bucket.
                flat = torch.frombuffer(buffer, dtype=bucket.dtype, count=shape.numel(), offset=offset)
                places[index] = flat.view(shape)
    return [place for place in places if place is not None]
