"""Batches of datasets with an order of their own: streams, and those that are read by ranges."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ranged, Stream, Training, numbers, rest_of_epoch, step
from torch.utils.data import (
    IterableDataset,
    get_worker_info,
)

from farandole.torch.elastic.loader import ElasticLoader

# What torch says about worker processes on a machine with one core, and Python about those that are forked.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


class OwnIterator(IterableDataset[int]):
    """A stream of the numbers from 0 that is its own iterator."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> "OwnIterator":
        self.number = -1
        return self

    def __next__(self) -> int:
        if self.number == self.length - 1:
            raise StopIteration
        self.number += 1
        return self.number


@pytest.mark.parametrize("kind", [Stream, Ranged])
def test_rank_without_samples_of_a_stream_borrows_its_last_ones(kind: Callable[[int], Any]) -> None:
    loader = ElasticLoader(kind(9), global_batch_size=4)
    for _ in range(2):
        loader.commit(loader.next(4, 3))
    batch = loader.next(4, 3)
    assert batch is not None and batch.data is None
    assert [int(number) for number in loader.borrow(batch)] == [7]


@pytest.mark.parametrize("kind", [Stream, Ranged])
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(("length", "lent"), [(1, [0, 0]), (2, [0, 1])])
def test_rank_that_has_had_no_samples_reads_those_of_others(
    kind: Callable[[int], Any], length: int, lent: list[int], num_workers: int
) -> None:
    loader = ElasticLoader(kind(length), batch_size=1, num_workers=num_workers)
    batch = loader.next(3, 2)
    assert batch is not None and batch.data is None
    assert [int(number) for number in loader.borrow(batch)] == lent
    loader.close()


@pytest.mark.parametrize("kind", [Stream, OwnIterator])
def test_stream_continues_after_samples_were_borrowed_from_it(kind: Callable[[int], Any]) -> None:
    loader = ElasticLoader(kind(9), global_batch_size=1)
    found = []
    for rank in (1, 1, 1, 0, 0, 1, 0, 0, 0):
        batch = loader.next(2, rank)
        assert batch is not None
        found.append([int(number) for number in (loader.borrow(batch) if batch.data is None else batch.data)])
        loader.commit(batch)
    assert found == [[0, 0], [0, 0], [0, 0], [3], [4], [4], [6], [7], [8]]


@pytest.mark.parametrize("length", [11, 12])
def test_drop_last_omits_the_short_end_of_a_stream(length: int) -> None:
    loader = ElasticLoader(Stream(length), batch_size=4, drop_last=True)
    assert [len(batch) for batch in rest_of_epoch(loader)] == [4] * (length // 4)


@pytest.mark.parametrize("length", range(10))
def test_all_ranks_see_the_end_of_a_stream_at_the_same_step(length: int) -> None:
    loaders = [ElasticLoader(Stream(length), batch_size=2) for _ in range(2)]
    found = []
    while (batches := step(loaders)) is not None:
        found.extend(number for batch in batches for number in numbers(batch))
        for loader, batch in zip(loaders, batches, strict=True):
            loader.commit(batch)
    assert found == list(range(length))
    assert [loader.ledger.samples for loader in loaders] == [length, length]
    assert loaders[0].steps_left(2) == 0


def test_stream_is_read_once_unless_samples_are_given_back() -> None:
    stream = Stream(20)
    loader = ElasticLoader(stream, batch_size=4)
    assert loader.steps_left(1) is None
    batch = loader.next(2, 1)
    assert batch is not None
    loader.commit(batch, lost=[0])
    assert stream.runs == 1
    assert list(itertools.chain(*rest_of_epoch(loader))) == [0, 1, 2, 3, *range(8, 20)]
    assert stream.runs == 2


def test_a_stream_may_be_its_own_iterator() -> None:
    training = Training(lambda: ElasticLoader(OwnIterator(20), batch_size=2), seed=3, most=3)
    assert training.epoch() == Counter(range(20))


@pytest.mark.parametrize("kind", [Stream, Ranged])
def test_a_dataset_with_an_order_of_its_own_is_told_the_epoch(kind: Any) -> None:
    class Told(kind):  # type: ignore[misc]
        epochs: tuple[int, ...] = ()

        def set_epoch(self, epoch: int) -> None:
            self.epochs = (*self.epochs, epoch)

    dataset = Told(4)
    loader = ElasticLoader(dataset, batch_size=2)
    rest_of_epoch(loader)
    loader.next_epoch()
    rest_of_epoch(loader)
    assert dataset.epochs == (0, 1)


def test_a_stream_that_fails_has_not_ended() -> None:
    class Failing(Stream):
        def __iter__(self) -> Iterator[int]:
            self.runs += 1
            for number in range(self.length):
                if number == 5 and self.runs == 1:
                    raise OSError("the disk is gone")
                yield number

    loader = ElasticLoader(Failing(8), batch_size=2)
    found = []
    with pytest.raises(OSError, match="the disk is gone"):
        while (batch := loader.next(1, 0)) is not None:
            found.append(numbers(batch))
            loader.commit(batch)
    assert found + rest_of_epoch(loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_stream_that_gets_shorter_is_noticed() -> None:
    stream = Stream(20)
    loader = ElasticLoader(stream, batch_size=4)
    batch = loader.next(2, 1)
    assert batch is not None
    loader.commit(batch, lost=[0])
    stream.length = 2
    with pytest.raises(RuntimeError, match="ended after 2 samples, but had more"):
        loader.next(1, 0)


def test_a_stream_that_splits_itself_among_worker_processes_is_whole() -> None:
    class Splitting(Stream):
        def __iter__(self) -> Iterator[int]:
            info = get_worker_info()
            assert info is not None
            yield from range(info.id, self.length, info.num_workers)

    with pytest.warns(
        UserWarning, match=r"one worker process reads, not 2: give it the method farandole_read\(ranges\)"
    ):
        loader = ElasticLoader(Splitting(10), batch_size=4, num_workers=2)
    assert rest_of_epoch(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_dataset_with_ranges_is_asked_for_its_own_part_only() -> None:
    dataset = Ranged(20)
    loader = ElasticLoader(dataset, batch_size=4)
    batch = loader.next(2, 1)
    assert batch is not None
    loader.commit(batch, lost=[0])
    loader.next(2, 1)
    assert dataset.asked == [((4, 8),), ((8, 12),)]


def test_a_dataset_that_returns_other_samples_than_asked_for_is_noticed() -> None:
    class Short(Ranged):
        def farandole_read(self, ranges: Sequence[tuple[int, int]]) -> Iterable[int]:
            return [1]

    with pytest.raises(RuntimeError, match=r"Short.farandole_read\(\(\(0, 4\),\)\) returned 1 samples.*4 positions"):
        ElasticLoader(Short(20), batch_size=4).next(1, 0)


class InColumns(Ranged):
    """Numbers that are read by ranges, all together."""

    farandole_apart = True

    def farandole_read(self, ranges: Sequence[tuple[int, int]]) -> Any:
        numbers = list(super().farandole_read(ranges))
        return {"number": np.asarray(numbers), "name": np.asarray([str(each) for each in numbers], dtype=object)}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_columns_become_a_dict_of_tensors(num_workers: int) -> None:
    loader = ElasticLoader(InColumns(20), batch_size=2, num_workers=num_workers)
    batch = loader.next(2, 1)
    loader.close()
    assert batch is not None
    assert batch.data["number"].tolist() == [10, 11]  # In a region of its own.
    assert list(batch.data["name"]) == ["10", "11"]


def test_columns_are_given_to_the_users_function() -> None:
    loader = ElasticLoader(InColumns(20), batch_size=2, collate_fn=lambda columns: columns["number"].sum())
    batch = loader.next(1, 0)
    assert batch is not None
    assert batch.data == 1


def test_columns_of_other_lengths_than_asked_for_are_noticed() -> None:
    class Uneven(Ranged):
        def farandole_read(self, ranges: Sequence[tuple[int, int]]) -> Any:
            return {"a": np.arange(4), "b": np.arange(5)}

    with pytest.raises(RuntimeError, match=r"returned 4 or 5 samples, but there are 4 positions"):
        ElasticLoader(Uneven(20), batch_size=4).next(1, 0)


def test_a_dataset_that_is_read_apart_gives_each_sample_once() -> None:
    class Apart(Ranged):
        farandole_apart = True

    training = Training(lambda: ElasticLoader(Apart(97), global_batch_size=8), seed=3, most=4)
    assert training.epoch() == training.epoch() == Counter(range(97))
    training.close()
