"""The order in which an epoch goes through rows: a pure function of seed and epoch."""

import itertools
import random

import numpy as np
import pytest

from farandole.parquet.order import EpochOrder, Piece


def rows_of(order: EpochOrder, rows: list[int], share: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Return what is at positions, each a row group and a row in it."""
    found = []
    for piece in order.pieces(share):
        there = [(group, row) for group in order.windows[piece.window] for row in range(rows[group])]
        places = order.places(piece.window)
        if places is not None:
            there = [there[at] for at in np.argsort(places)]
        found += there[piece.begin : piece.end]
    return found


def all_rows(rows: list[int]) -> list[tuple[int, int]]:
    return [(group, row) for group, length in enumerate(rows) for row in range(length)]


def test_without_shuffling_rows_come_as_in_the_files() -> None:
    rows = [3, 0, 5, 1]
    order = EpochOrder(rows, seed=1, epoch=2, shuffle=False, window=2)
    assert rows_of(order, rows, ((0, 9),)) == all_rows(rows)
    assert list(order.pieces(((2, 4), (8, 9)))) == [Piece(0, 2, 3), Piece(2, 0, 1), Piece(3, 0, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_each_row_is_at_one_position(seed: int) -> None:
    chance = random.Random(seed)
    rows = [chance.randrange(6) for _ in range(chance.randint(1, 9))] + [1]
    order = EpochOrder(rows, seed, epoch=3, shuffle=True, window=chance.randint(1, 4))
    cuts = sorted({0, sum(rows), *(chance.randint(0, sum(rows)) for _ in range(4))})
    shares = [((begin, end),) for begin, end in itertools.pairwise(cuts)]
    assert sorted(row for share in shares for row in rows_of(order, rows, share)) == all_rows(rows)


def test_a_window_has_rows_of_its_row_groups_only_and_mixes_them() -> None:
    rows = [50] * 6
    order = EpochOrder(rows, seed=5, epoch=0, shuffle=True, window=2)
    assert sorted(group for window in order.windows for group in window) == list(range(6))
    for number, window in enumerate(order.windows):
        there = rows_of(order, rows, ((100 * number, 100 * number + 100),))
        assert {group for group, _ in there} == set(window)
        assert {group for group, _ in there[:20]} == set(window)


def test_the_order_follows_from_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[tuple[int, int]]:
        rows = [20, 20, 20]
        return rows_of(EpochOrder(rows, seed, epoch, shuffle=True, window=2), rows, ((0, 60),))

    assert order(1, 1) == order(1, 1)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1, -1, 1 << 40) for epoch in (0, 1)}) == 8


def test_the_order_is_the_same_in_all_versions() -> None:
    order = EpochOrder([2, 3, 2], seed=7, epoch=1, shuffle=True, window=2)
    assert order.windows == [(1, 2), (0,)]
    assert [list(order.places(number)) for number in (0, 1)] == [[1, 3, 0, 4, 2], [0, 1]]


@pytest.mark.parametrize("share", [((0, 10),), ((-1, 2),)])
def test_positions_that_are_not_there_are_refused(share: tuple[tuple[int, int], ...]) -> None:
    order = EpochOrder([3, 6], seed=0, epoch=0, shuffle=False, window=2)
    with pytest.raises(IndexError, match="there are 9 rows"):
        list(order.pieces(share))
