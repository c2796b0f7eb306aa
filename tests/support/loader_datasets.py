"""Datasets of numbers for tests of elastic loaders, and a simulated job that reads them."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import (
    Dataset,
    IterableDataset,
)

from farandole.torch.elastic.loader import Batch, ElasticLoader


class Numbers(Dataset[int]):
    """A dataset whose samples are their indices."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return index


class Stream(IterableDataset[int]):
    """A stream of the numbers from 0, of unknown length."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.runs = 0

    def __iter__(self) -> Iterator[int]:
        self.runs += 1
        yield from range(self.length)


class Ranged:
    """Numbers that are read by ranges."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.asked: list[Sequence[tuple[int, int]]] = []

    def __len__(self) -> int:
        return self.length

    def farandole_read(self, ranges: Sequence[tuple[int, int]]) -> Iterable[int]:
        self.asked.append(ranges)
        return itertools.chain.from_iterable(range(begin, end) for begin, end in ranges)


KINDS: list[Callable[[int], Any]] = [Numbers, Stream, Ranged]


def numbers(batch: Batch) -> list[int]:
    """Return the samples of a batch."""
    return [] if batch.data is None else [int(number) for number in batch.data]


def step(loaders: Sequence[ElasticLoader]) -> list[Batch] | None:
    """Return the next batches of all ranks, after checking that they agree."""
    batches = [loader.next(len(loaders), rank) for rank, loader in enumerate(loaders)]
    if batches[0] is None:
        assert batches == [None] * len(loaders)
        return None
    whole = [batch for batch in batches if batch is not None]
    assert len(whole) == len(loaders)
    for batch in whole:
        assert (batch.shares, batch.total, batch.ledger) == (whole[0].shares, whole[0].total, whole[0].ledger)
        after = batch.ledger.commit(batch.shares)
        assert batch.committed() == (after if batch.end is None else after.ends_at(batch.end))
    assert [batch.samples for batch in whole] == [len(numbers(batch)) for batch in whole]
    assert sum(batch.samples for batch in whole) == whole[0].total > 0
    return whole


def rest_of_epoch(loader: ElasticLoader) -> list[list[int]]:
    """Return the batches of a world of one."""
    found = []
    while (batch := loader.next(1, 0)) is not None:
        found.append(numbers(batch))
        loader.commit(batch)
    return found


class Training:
    """A job whose workers join and leave at random."""

    def __init__(self, make: Callable[[], ElasticLoader], seed: int, most: int) -> None:
        self._make = make
        self._chance = random.Random(seed)
        self._most = most
        self._loaders = [make() for _ in range(self._chance.randint(1, most))]

    def epoch(self) -> Counter[int]:
        """Return the number of uses of each sample."""
        used: Counter[int] = Counter()
        while (batches := step(self._loaders)) is not None:
            event = self._chance.random()
            if event < 0.15:
                self._abort(batches)
            elif event < 0.4:
                used.update(self._commit(batches, self._some_ranks()))
            else:
                used.update(self._commit(batches, set()))
            if self._chance.random() < 0.2:
                self._join()
            assert len({loader.ledger for loader in self._loaders}) == 1
        for loader in self._loaders:
            loader.next_epoch()
        return used

    def close(self) -> None:
        for loader in self._loaders:
            loader.close()

    def _commit(self, batches: list[Batch], lost: set[int]) -> list[int]:
        for rank, (loader, batch) in enumerate(zip(self._loaders, batches, strict=True)):
            if rank in lost:
                loader.close()
            else:
                loader.commit(batch, lost)
        self._loaders = [loader for rank, loader in enumerate(self._loaders) if rank not in lost]
        return [number for rank, batch in enumerate(batches) if rank not in lost for number in numbers(batch)]

    def _abort(self, batches: list[Batch]) -> None:
        for loader, batch in zip(self._loaders, batches, strict=True):
            loader.abort(batch)
        lost = self._some_ranks()
        for rank in lost:
            self._loaders[rank].close()
        self._loaders = [loader for rank, loader in enumerate(self._loaders) if rank not in lost]

    def _join(self) -> None:
        if len(self._loaders) < self._most:
            newcomer = self._make()
            newcomer.ledger = self._loaders[0].ledger
            self._loaders.append(newcomer)

    def _some_ranks(self) -> set[int]:
        size = len(self._loaders)
        return set(self._chance.sample(range(size), self._chance.randrange(size)))
