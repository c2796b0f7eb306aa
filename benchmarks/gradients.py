"""The gradients of ResNet-50: 161 tensors, 25,557,032 elements, by the network's architecture."""

from __future__ import annotations

from itertools import pairwise
from math import prod

# Blocks in each of the four stages, and the channels inside a block; a block's output has four times as many.
_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
_CLASSES = 1000
# DistributedDataParallel's: a small first bucket, so that communication begins early, then 25 MB each.
_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20


def resnet50_shapes() -> list[tuple[int, ...]]:
    """Return the shapes of the parameters, in the order of the forward pass.

    A convolution has a weight and no bias; each is followed by a batch norm, which has both. (He et al., "Deep Residual
    Learning for Image Recognition", 2015, table 1, with the projections of its option B.)

    Example:
        >>> len(resnet50_shapes()), sum(map(prod, resnet50_shapes()))
        (161, 25557032)
    """
    shapes: list[tuple[int, ...]] = _normalized(3, 64, 7)
    channels = 64
    for blocks, width in _STAGES:
        for block in range(blocks):
            sizes = (channels, width, width, 4 * width)
            for (inputs, outputs), kernel in zip(pairwise(sizes), (1, 3, 1), strict=True):
                shapes += _normalized(inputs, outputs, kernel)
            if block == 0:
                shapes += _normalized(channels, 4 * width, 1)
            channels = 4 * width
    return [*shapes, (_CLASSES, channels), (_CLASSES,)]


def _normalized(inputs: int, outputs: int, kernel: int) -> list[tuple[int, ...]]:
    """Return the shapes of a convolution and its batch norm."""
    return [(outputs, inputs, kernel, kernel), (outputs,), (outputs,)]


def plan_buckets() -> list[tuple[int, int]]:
    """Return DDP's buckets, last gradient first: how many elements each has, and how many gradients."""
    buckets, elements, members, limit = [], 0, 0, _FIRST_BUCKET_BYTES
    for shape in reversed(resnet50_shapes()):
        elements, members = elements + prod(shape), members + 1
        if elements * 4 >= limit:
            buckets.append((elements, members))
            elements, members, limit = 0, 0, _BUCKET_BYTES
    return [*buckets, (elements, members)] if members else buckets
