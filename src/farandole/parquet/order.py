"""The order of the rows in an epoch.

The order is made of *windows* of a few row groups, which follow each other in a shuffled order of all row groups.
Within a window, rows are shuffled. So a reader needs only the row groups of one window at a time. The order is a pure
function of the seed and the epoch, the same on all machines and in all versions: checkpoints rely on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from farandole.worker.elastic.ledger import Share
from farandole.worker.elastic.permutation import permutation

_32_BITS = (1 << 32) - 1


class Piece(NamedTuple):
    """Consecutive rows of one window."""

    window: int
    begin: int
    """The position of the first of these rows within the window."""
    end: int


class EpochOrder:
    """The rows of one epoch, in their order.

    Args:
        rows: the number of rows of each row group.
        seed: a number that, together with the epoch, determines the order.
        epoch: the number of the epoch, from 0.
        shuffle: whether to shuffle; otherwise rows come in the files' order, and a window is one row group.
        window: the number of row groups in a window.
    """

    def __init__(self, rows: Sequence[int], seed: int, epoch: int, *, shuffle: bool, window: int) -> None:
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = epoch
        groups = permutation(len(rows), seed, epoch).indices(0, len(rows)) if shuffle else range(len(rows))
        size = window if shuffle else 1
        self.windows: list[tuple[int, ...]] = [tuple(groups[at : at + size]) for at in range(0, len(rows), size)]
        """The numbers of the row groups in each window."""
        lengths = [sum(rows[group] for group in groups) for groups in self.windows]
        self._begins = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        """The position of the first row of each window, and the number of all rows."""

    def pieces(self, share: Share) -> Iterator[Piece]:
        """Yield the pieces that cover ranges of positions, in order.

        Raises:
            IndexError: there is no such position.
        """
        for begin, end in share:
            if not 0 <= begin <= end <= self._begins[-1]:
                raise IndexError(f"there are {self._begins[-1]} rows, and no rows {begin} to {end}")
            window = int(np.searchsorted(self._begins, begin, "right")) - 1
            while begin < end:
                first, after = int(self._begins[window]), int(self._begins[window + 1])
                upto = min(end, after)
                if begin < upto:
                    yield Piece(window, begin - first, upto - first)
                begin, window = upto, window + 1

    def places(self, window: int) -> Any:
        """Return the place in the window of each row, in the order of the files; None: rows are not shuffled."""
        if not self._shuffle:
            return None
        size = int(self._begins[window + 1] - self._begins[window])
        numbers = (self._seed, self._epoch, window)
        words = [number >> shift & _32_BITS for number in numbers for shift in (0, 32)]
        # Of NumPy's generators, only this one is guaranteed to draw the same numbers in all versions.
        return np.random.RandomState(words).permutation(size)
