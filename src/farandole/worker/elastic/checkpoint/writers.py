"""The choice of the rank that writes each tensor of a replicated state: a pure function, the same on every rank.

All tensors are concatenated in the order given, and the result is cut into shards of equal length. A large tensor that
lies across a cut is split between two rows of its first dimension; a small one belongs to the shard in which its middle
lies. So every shard contains at most one piece of a tensor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

# Smaller tensors are not split: reading them from two files would cost more than it gains.
SPLIT_BYTES = 1024 * 1024


class Piece(NamedTuple):
    """Rows [begin, end) of a tensor's first dimension, in one shard. A tensor without dimensions is one row."""

    shard: int
    begin: int
    end: int


class Extent(NamedTuple):
    """The size of a tensor: its rows, and the bytes of each."""

    rows: int
    row_bytes: int


def share_out(extents: Sequence[Extent], shards: int) -> list[tuple[Piece, ...]]:
    """Return the pieces of each tensor, in the order of their rows; they cover it exactly once.

    Args:
        extents: the extents of all tensors, in an order that is the same on every rank.
        shards: the number of shards.

    Example:
        >>> share_out([Extent(1, 8), Extent(4, SPLIT_BYTES)], 2)
        [(Piece(shard=0, begin=0, end=1),), (Piece(shard=0, begin=0, end=2), Piece(shard=1, begin=2, end=4))]
    """
    total = sum(extent.rows * extent.row_bytes for extent in extents)
    cuts = [total * shard // shards for shard in range(shards)]
    pieces = []
    start = 0
    for extent in extents:
        pieces.append(_pieces(extent, start, cuts))
        start += extent.rows * extent.row_bytes
    return pieces


def _pieces(extent: Extent, start: int, cuts: list[int]) -> tuple[Piece, ...]:
    size = extent.rows * extent.row_bytes
    if size < SPLIT_BYTES:
        return (Piece(bisect_right(cuts, start + size // 2) - 1, 0, extent.rows),)
    first = bisect_right(cuts, start) - 1
    last = bisect_right(cuts, start + size - 1) - 1
    inner = [round((cut - start) / extent.row_bytes) for cut in cuts[first + 1 : last + 1]]
    borders = [0, *inner, extent.rows]
    return tuple(
        Piece(first + number, begin, end) for number, (begin, end) in enumerate(pairwise(borders)) if begin < end
    )
