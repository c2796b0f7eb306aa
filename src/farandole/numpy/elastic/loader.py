"""Batches of samples in a world that changes: every sample exactly once in an epoch.

The loader has the ledger (`worker.elastic.ledger`), which is the same on all ranks, so each knows without communication
which samples all of them read in a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np

from farandole.errors import InvalidRequestError
from farandole.worker.elastic.batches import BatchPolicy, chosen_batches
from farandole.worker.elastic.ledger import Ledger, Share
from farandole.worker.elastic.loader_arguments import check_flag, read_whole
from farandole.worker.elastic.ranges import RangeReader, reads_apart, refusal_to_shuffle

Place = tuple[Ledger, tuple[int, ...], int]
"""The facts that determine what a rank reads: the ledger, the number of samples for each rank, and the rank."""


class Batch(msgspec.Struct, frozen=True, eq=False):
    """The samples of one rank in one step: an implementation of `farandole.worker.elastic.framework.Batch`."""

    data: Any
    shares: tuple[Share, ...]
    samples: int
    total: int
    ledger: Ledger
    """The ledger before the step."""
    after: Ledger
    """The ledger after the step, if no rank is lost."""


class IndexLoader(ABC):
    """Loads batches by the indices of their samples, or by ranges of positions from a dataset that supports this.

    A front end's `ElasticLoader` defines how the samples of indices are read.
    """

    def __init__(
        self,
        samples: int,
        *,
        batch_size: int | None,
        global_batch_size: int | None,
        batches: BatchPolicy | None,
        shuffle: bool | None,
        seed: int,
        drop_last: bool,
        ranged: Any = None,
    ) -> None:
        """Create a loader of `samples` samples; if `ranged` is given, they are read from it, by ranges.

        The front end's loader describes the other arguments.
        """
        check_flag("shuffle", shuffle)
        check_flag("drop_last", drop_last)
        if shuffle and ranged is not None:
            raise InvalidRequestError(refusal_to_shuffle(ranged))
        self._policy = chosen_batches(batch_size, global_batch_size, batches)
        self._samples = samples
        self._ranges = None if ranged is None else RangeReader(ranged)
        shuffle = ranged is None if shuffle is None else shuffle
        seed = read_whole("seed", seed)
        self._ledger = Ledger(samples, seed, shuffle=shuffle, drop_last=drop_last, apart=reads_apart(ranged))
        self._current: tuple[Place, Batch] | None = None
        """The place of the current step, and its batch."""
        self._follows: Place | None = None
        """The place of the next step if the world does not change, as reading ahead assumes."""

    @abstractmethod
    def _once(self, indices: Any) -> Any:
        """Return a batch of the samples with these indices."""

    def _stacked(self, samples: Sequence[Any] | dict[str, Any]) -> Any:
        """Return a batch of samples that were read by ranges: a list of samples, or columns. Only loaders of ranges
        need it.
        """
        raise NotImplementedError

    def _read(self, place: Place, share: Share) -> Any:
        """Return this rank's batch of a step."""
        if self._ranges is not None:
            return self._stacked(self._ranges.read(place[0].epoch, share))
        return self._once(np.asarray(place[0].indices(share), np.int64))

    @property
    def ledger(self) -> Ledger:
        """The record of the epoch's used samples. A worker that joins gets it from the others, with the weights."""
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: Ledger) -> None:
        if ledger.samples != self._samples:
            raise InvalidRequestError(
                f"this ledger has {ledger.samples} samples, but the source has {self._samples}: all workers need the "
                "same samples."
            )
        self._ledger = ledger

    def take_counts_from(self, batches: BatchPolicy) -> None:
        """Use another policy from the next step on. It may change its counts between two steps."""
        self._policy = batches

    def counts(self, world_size: int) -> tuple[int, ...]:
        """Return the number of samples that each rank takes in a full step, by rank."""
        return self._policy.counts(world_size)

    def next(self, world_size: int, rank: int) -> Batch | None:
        """Return this rank's batch of the next step, or None at the end of the epoch. All ranks agree about the end.

        Until the step is committed, this is the batch of the same step.

        Args:
            world_size: the number of workers in the present world.
            rank: this worker's rank in it.
        """
        counts = self.counts(world_size)
        ledger = self._ledger
        if not ledger.left or (ledger.drop_last and ledger.left < sum(counts)):
            return None
        place = ledger, counts, rank
        if self._current is None or self._current[0] != place:
            shares, after = ledger.step(counts)
            own = shares[rank]
            data = self._read(place, own) if own else None
            self._current = place, Batch(data, shares, _length(own), ledger.left - after.left, ledger, after)
            self._follows = None
        return self._current[1]

    def borrow(self, batch: Batch) -> Any:
        """Return two samples of other ranks' parts of a step, for a rank that has none; they do not count as used."""
        positions = [position for share in batch.shares for begin, end in share for position in range(begin, end)[:2]]
        first, second = (positions * 2)[:2]
        if self._ranges is not None:
            pair = ((first, first + 1), (second, second + 1))
            return self._stacked(self._ranges.read(batch.ledger.epoch, pair))
        return self._once(np.asarray([batch.ledger.index(first), batch.ledger.index(second)], np.int64))

    def commit(self, batch: Batch, lost: Collection[int] = ()) -> None:
        """Count the samples of a step as used, and continue with the next one.

        Args:
            batch: the batch of the step; its samples are those of all ranks.
            lost: the ranks, in the world of the batch, whose gradients are not in the result. Their samples are read
                again in the next step.
        """
        if batch.ledger != self._ledger:
            raise InvalidRequestError("this batch belongs to another step: commit each batch once.")
        self._ledger = batch.ledger.commit(batch.shares, lost) if lost else batch.after
        self._follows = None
        if self._current is not None and not lost:
            _, counts, rank = self._current[0]
            self._follows = self._ledger, counts, rank
        self._current = None

    def next_epoch(self) -> None:
        """Begin the next epoch. The rest of this one is skipped."""
        self._ledger = self._ledger.next_epoch(self._samples)


def number_of_samples(source: Any) -> int:
    """Return the source of a loader with `load=`, which must be the number of samples.

    Raises:
        InvalidRequestError: it is something else.
    """
    if isinstance(source, int) and source >= 0:
        return source
    raise InvalidRequestError(
        f"with load=, which is given the indices of samples, ElasticLoader needs the number of samples, not "
        f"{type(source).__name__}."
    )


def _length(share: Share) -> int:
    return sum(end - begin for begin, end in share)
