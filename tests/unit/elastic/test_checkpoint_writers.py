"""Who writes what of a checkpoint: everything once, in equal shares, the same on all ranks."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from farandole.worker.elastic.checkpoint.writers import SPLIT_BYTES, Extent, Piece, share_out


@pytest.mark.parametrize("seed", range(50))
def test_every_row_is_in_exactly_one_shard_and_shards_are_of_one_size(seed: int) -> None:
    chance = random.Random(seed)
    shards = chance.randint(1, 9)
    extents = [
        Extent(chance.choice([0, 1, 2, 7, 1000]), chance.choice([0, 1, 8, 4096, SPLIT_BYTES // 3]))
        for _ in range(chance.randint(0, 30))
    ]
    pieces = share_out(extents, shards)
    loads = [0] * shards
    for extent, parts in zip(extents, pieces, strict=True):
        assert parts[0].begin == 0 and parts[-1].end == extent.rows
        assert all(before.end == after.begin for before, after in pairwise(parts))
        assert len({piece.shard for piece in parts}) == len(parts), "a shard holds at most one piece of a tensor"
        for piece in parts:
            loads[piece.shard] += (piece.end - piece.begin) * extent.row_bytes
    assert max(loads) - sum(extent.rows * extent.row_bytes for extent in extents) / shards <= SPLIT_BYTES


def test_one_rank_writes_all() -> None:
    assert share_out([Extent(5, 10**9), Extent(0, 8), Extent(1, 4)], 1) == [
        (Piece(0, 0, 5),),
        (Piece(0, 0, 0),),
        (Piece(0, 0, 1),),
    ]


def test_a_large_tensor_is_split_between_rows() -> None:
    assert share_out([Extent(10, SPLIT_BYTES)], 4) == [
        (Piece(0, 0, 2), Piece(1, 2, 5), Piece(2, 5, 8), Piece(3, 8, 10)),
    ]


def test_rows_that_are_too_large_to_be_shared_stay_whole() -> None:
    (parts,) = share_out([Extent(2, 100 * SPLIT_BYTES)], 5)
    assert [(piece.begin, piece.end) for piece in parts] == [(0, 1), (1, 2)]


def test_small_tensors_stay_whole_and_nothing_needs_no_shard() -> None:
    assert all(len(parts) == 1 for parts in share_out([Extent(1000, 8)] * 40, 7))
    assert share_out([], 3) == []
