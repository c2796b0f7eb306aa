"""Batches in worlds that change. Several loaders with the same ledger play the ranks."""

import doctest
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from farandole.elastic.ledger import UNBOUNDED, Ledger
from farandole.torch.elastic import loader as module
from farandole.torch.elastic.loader import Batch, ElasticLoader
from farandole.torch.elastic.read_ahead import _SAMPLES_AT_ONCE, _STEPS_AT_ONCE

# What torch says about worker processes on a machine with one core, and Python about those that are forked.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


class Numbers(Dataset[int]):
    """Its samples are their indices."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return index


class Stream(IterableDataset[int]):
    """The numbers from 0 on, whose end nobody knows before."""

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
    """Return the next batches of all ranks, which agree about everything."""
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
    """A job whose workers come and go by chance."""

    def __init__(self, make: Callable[[], ElasticLoader], seed: int, most: int) -> None:
        self._make = make
        self._chance = random.Random(seed)
        self._most = most
        self._loaders = [make() for _ in range(self._chance.randint(1, most))]

    def epoch(self) -> Counter[int]:
        """Return how often each sample was used."""
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


# --- exactly once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(40))
def test_every_sample_is_used_exactly_once_in_every_epoch(kind: Callable[[int], Any], seed: int) -> None:
    length = [0, 1, 5, 37, 60][seed % 5]
    sizes: list[dict[str, Any]] = [{"batch_size": 3}, {"global_batch_size": 8}, {"global_batch_size": 2}]
    training = Training(lambda: ElasticLoader(kind(length), **sizes[seed % 3], seed=seed), seed, most=5)
    for _ in range(3):
        assert training.epoch() == Counter(range(length))


@pytest.mark.filterwarnings("ignore:.*is one stream:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_is_used_exactly_once_with_worker_processes(kind: Callable[[int], Any]) -> None:
    training = Training(lambda: ElasticLoader(kind(150), batch_size=3, num_workers=2), seed=1, most=3)
    try:
        for _ in range(2):
            assert training.epoch() == Counter(range(150))
    finally:
        training.close()


def test_epochs_have_their_own_order_and_all_ranks_the_same() -> None:
    one, other = (ElasticLoader(Numbers(50), batch_size=50, seed=4) for _ in range(2))
    first = rest_of_epoch(one)
    assert first == rest_of_epoch(other)
    one.next_epoch()
    assert rest_of_epoch(one) != first
    assert rest_of_epoch(ElasticLoader(Numbers(50), batch_size=50, shuffle=False)) == [list(range(50))]


def test_a_world_bigger_than_the_batch_leaves_some_without_any() -> None:
    loaders = [ElasticLoader(Numbers(5), global_batch_size=2) for _ in range(4)]
    batches = step(loaders)
    assert batches is not None
    assert [batch.samples for batch in batches] == [1, 1, 0, 0]
    assert batches[3].data is None


def test_the_last_step_is_short_and_not_padded() -> None:
    loaders = [ElasticLoader(Numbers(7), batch_size=2, shuffle=False) for _ in range(2)]
    found = []
    while (batches := step(loaders)) is not None:
        found.append([numbers(batch) for batch in batches])
        for loader, batch in zip(loaders, batches, strict=True):
            loader.commit(batch)
    assert found == [[[0, 1], [2, 3]], [[4, 5], [6]]]


def test_a_step_stays_the_same_until_it_is_committed() -> None:
    loader = ElasticLoader(Numbers(100), batch_size=4)
    batch = loader.next(2, 1)
    again = loader.next(2, 1)
    assert batch is not None and again is not None
    assert again.data is batch.data
    loader.abort(again)
    anew = loader.next(2, 1)
    assert anew is not None
    assert anew.data is not batch.data, "the step may have changed it in place"
    assert numbers(anew) == numbers(batch)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_more_steps_than_are_planned_at_once_follow_the_ledger(num_workers: int) -> None:
    length = 10 * _SAMPLES_AT_ONCE
    for size in (1, 3, 32, 1500, 5000):
        loader = ElasticLoader(Numbers(length), batch_size=size, seed=4, num_workers=num_workers)
        ledger = Ledger(length, seed=4)
        for _ in range(min(2 * _STEPS_AT_ONCE + 2, length // size)):
            batch = loader.next(1, 0)
            assert batch is not None
            (share,) = ledger.take([size])
            assert numbers(batch) == ledger.indices(share)
            loader.commit(batch)
            ledger = ledger.commit([share])
            assert loader.ledger == ledger
        loader.close()


def test_a_policy_of_the_users_is_asked_again_in_each_step() -> None:
    class Growing:
        size = 0

        def counts(self, world_size: int) -> tuple[int, ...]:
            self.size += 1
            return (self.size,) * world_size

    loader = ElasticLoader(Numbers(10), batches=Growing(), shuffle=False)
    assert rest_of_epoch(loader) == [[0], [1, 2], [3, 4, 5], [6, 7, 8, 9]]


def test_a_batch_of_another_step_is_refused() -> None:
    loader = ElasticLoader(Numbers(100), batch_size=4)
    batch = loader.next(1, 0)
    assert batch is not None
    loader.commit(batch)
    with pytest.raises(ValueError, match="commit or abort each batch once"):
        loader.commit(batch)
    with pytest.raises(ValueError, match="commit or abort each batch once"):
        loader.abort(batch)


def test_getitems_is_used_where_there_is_one() -> None:
    class Many(Numbers):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [100 + index for index in indices]

    assert rest_of_epoch(ElasticLoader(Many(3), batch_size=2, shuffle=False)) == [[100, 101], [102]]


@pytest.mark.parametrize(("samples", "lent"), [(9, [8, 8]), (10, [8, 9])])
def test_samples_are_lent_to_a_rank_without_any(samples: int, lent: list[int]) -> None:
    loader = ElasticLoader(Numbers(samples), global_batch_size=4, shuffle=False)
    for _ in range(2):
        loader.commit(loader.next(4, 3))
    batch = loader.next(4, 3)
    assert batch is not None and batch.data is None
    assert [int(number) for number in loader.borrow(batch)] == lent


@pytest.mark.parametrize("kind", [Stream, Ranged])
def test_of_an_order_of_its_own_a_rank_has_its_last_samples_again(kind: Callable[[int], Any]) -> None:
    loader = ElasticLoader(kind(9), global_batch_size=4)
    for _ in range(2):
        loader.commit(loader.next(4, 3))
    batch = loader.next(4, 3)
    assert batch is not None and batch.data is None
    assert [int(number) for number in loader.borrow(batch)] == [7]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_short_step_is_left_out_if_wanted(num_workers: int) -> None:
    loader = ElasticLoader(Numbers(11), batch_size=4, drop_last=True, num_workers=num_workers)
    assert loader.steps_left(1) == 2
    assert [len(batch) for batch in rest_of_epoch(loader)] == [4, 4]
    loader.next_epoch()
    assert [len(batch) for batch in rest_of_epoch(loader)] == [4, 4]
    loader.next_epoch()
    # What lost workers give back counts.
    loader.commit(loader.next(2, 0), lost=[1])
    assert [len(batch) for batch in rest_of_epoch(loader)] == [4]
    loader.close()


@pytest.mark.parametrize("length", [11, 12])
def test_the_short_end_of_a_stream_is_left_out_if_wanted(length: int) -> None:
    loader = ElasticLoader(Stream(length), batch_size=4, drop_last=True)
    assert [len(batch) for batch in rest_of_epoch(loader)] == [4] * (length // 4)


# --- tensors -----------------------------------------------------------------------------------------------------


class Doubled(TensorDataset):
    """Its samples are not what its tensors are."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(2 * tensor for tensor in super().__getitem__(index))


class Labels(torch.Tensor):
    """A tensor that may have its own ways."""


TABLE = torch.arange(60.0).reshape(20, 3)
DATASETS = {
    "one": TensorDataset(TABLE),
    "images and labels": TensorDataset(torch.rand(20, 3, 4, 5), torch.arange(20)),
    "of many types": TensorDataset(TABLE.bfloat16(), TABLE.half(), TABLE.double(), TABLE > 30, TABLE.to(torch.int8)),
    "no numbers in a sample": TensorDataset(torch.zeros(20, 0, 2)),
    "in another order of dimensions": TensorDataset(torch.rand(3, 20).t(), torch.rand(20, 3, 4, 5).transpose(1, 3)),
    "channels last": TensorDataset(torch.rand(20, 3, 4, 5).contiguous(memory_format=torch.channels_last)),
    "with a graph": TensorDataset(TABLE.clone().requires_grad_()),
    "complex": TensorDataset(torch.complex(TABLE, TABLE)),
    "a tensor's subclass": TensorDataset(TABLE.as_subclass(Labels)),
    "the dataset's subclass": Doubled(TABLE),
    "stacked": StackDataset(TABLE, TABLE),
}


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
@pytest.mark.parametrize("collate_fn", [None, default_collate, lambda samples: [len(samples), *samples[0]]])
def test_tensors_are_read_as_by_torch(dataset: Any, collate_fn: Callable[[Any], Any] | None) -> None:
    loader = ElasticLoader(dataset, batch_size=7, seed=3, collate_fn=collate_fn)
    order = ElasticLoader(range(20), batch_size=7, seed=3)
    while (batch := loader.next(1, 0)) is not None:
        chosen = order.next(1, 0)
        (by_torch,) = DataLoader(dataset, batch_sampler=[numbers(chosen)], collate_fn=collate_fn)
        assert type(batch.data) is type(by_torch)
        assert len(batch.data) == len(by_torch)
        for found, expected in zip(batch.data, by_torch, strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0, check_stride=True)
            assert type(found) is type(expected)
            assert getattr(found, "requires_grad", None) == getattr(expected, "requires_grad", None)
        order.commit(chosen)
        loader.commit(batch)


def test_tensors_may_become_others_between_two_steps() -> None:
    dataset = TensorDataset(torch.zeros(8, 2))
    loader = ElasticLoader(dataset, batch_size=4)
    batch = loader.next(1, 0)
    assert batch is not None and not batch.data[0].any()
    loader.commit(batch)
    dataset.tensors = (torch.ones(8, 2).as_subclass(Labels),)
    batch = loader.next(1, 0)
    assert batch is not None and isinstance(batch.data[0], Labels) and batch.data[0].all()


# --- streams -----------------------------------------------------------------------------------------------------


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


def test_a_stream_is_gone_through_once_unless_something_is_given_back() -> None:
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
    class Own(IterableDataset[int]):
        def __iter__(self) -> "Own":
            self.number = -1
            return self

        def __next__(self) -> int:
            if self.number == 19:
                raise StopIteration
            self.number += 1
            return self.number

    training = Training(lambda: ElasticLoader(Own(), batch_size=2), seed=3, most=3)
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


# --- worker processes --------------------------------------------------------------------------------------------


class WhoReads(Numbers):
    """Its samples are the processes that read them."""

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def test_a_change_of_the_world_keeps_the_worker_processes() -> None:
    loader = ElasticLoader(WhoReads(1000), batch_size=2, num_workers=2)
    readers = set()
    for number, world in enumerate([1, 1, 1, 2, 2, 3, 1, 1]):
        batch = loader.next(world, 0)
        assert batch is not None
        readers.update(numbers(batch))
        loader.commit(batch, lost=[world - 1] if number == 5 else ())
    loader.next_epoch()
    batch = loader.next(1, 0)
    assert batch is not None
    readers.update(numbers(batch))
    assert len(readers) == 2
    loader.close()


class Gated(Numbers):
    """Waits before its third sample, and tells what it reads."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.gate = multiprocessing.Event()
        self.told = multiprocessing.Queue()  # type: ignore[var-annotated]

    def __getitem__(self, index: int) -> int:
        self.told.put(index)
        if index == 2:
            assert self.gate.wait(60)
        return index


def test_outdated_batches_are_not_waited_for() -> None:
    dataset = Gated(1000)
    loader = ElasticLoader(dataset, batch_size=1, shuffle=False, num_workers=1, prefetch_factor=4)
    batch = loader.next(1, 0)
    assert batch is not None
    assert [dataset.told.get(timeout=60) for _ in range(3)] == [0, 1, 2]
    loader.abort(batch)
    loader.ledger = Ledger(1000, cursor=500, shuffle=False)
    dataset.gate.set()
    batch = loader.next(1, 0)
    assert batch is not None
    assert numbers(batch) == [500]
    assert dataset.told.get(timeout=60) == 500, "3 and 4 were asked for, but are outdated"
    loader.close()


class FailsOnce(Numbers):
    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.failed = multiprocessing.Event()

    def __getitem__(self, index: int) -> int:
        if index == 5 and not self.failed.is_set():
            self.failed.set()
            raise KeyError("sample 5")
        return index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_a_dataset_raises_reaches_the_caller_and_nothing_is_left_out(num_workers: int) -> None:
    loader = ElasticLoader(FailsOnce(10), batch_size=2, shuffle=False, num_workers=num_workers)
    found = []
    with pytest.raises(KeyError, match="sample 5" if num_workers == 0 else "in DataLoader worker process"):
        while (batch := loader.next(1, 0)) is not None:
            found.append(numbers(batch))
            loader.commit(batch)
    assert found + rest_of_epoch(loader) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    loader.close()


class Seeds(Numbers):
    def __getitem__(self, index: int) -> int:
        info = get_worker_info()
        assert info is not None and isinstance(info.dataset, Seeds)
        assert info.seed == torch.initial_seed()
        return info.seed


def test_worker_processes_are_seeded_as_by_torch() -> None:
    torch.manual_seed(5)
    by_torch = {int(seed) for seed in DataLoader(Seeds(4), num_workers=2)}
    torch.manual_seed(5)
    loader = ElasticLoader(Seeds(4), batch_size=1, num_workers=2)
    assert {seed for batch in rest_of_epoch(loader) for seed in batch} == by_torch
    loader.close()


def set_up(process: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.length = 1000 + process


class SetUp(Numbers):
    def __getitem__(self, index: int) -> int:
        return self.length


def test_the_users_function_sets_worker_processes_up() -> None:
    loader = ElasticLoader(SetUp(4), batch_size=1, num_workers=2, worker_init_fn=set_up)
    assert rest_of_epoch(loader) == [[1000], [1001], [1000], [1001]]
    loader.close()


def test_worker_processes_may_be_spawned() -> None:
    dataset = TensorDataset(torch.arange(10))
    loader = ElasticLoader(
        dataset,
        batch_size=4,
        shuffle=False,
        num_workers=1,
        multiprocessing_context="spawn",
        collate_fn=torch.utils.data.default_collate,
    )
    batch = loader.next(1, 0)
    assert batch is not None
    assert batch.data[0].tolist() == [0, 1, 2, 3]
    loader.close()


def ended(pid: int) -> bool:
    """Return whether a process has ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("end", ["close", "forget"])
def test_worker_processes_end_with_the_loader(end: str) -> None:
    loader = ElasticLoader(WhoReads(1000), batch_size=1, num_workers=2)
    batches = []
    for _ in range(2):
        batch = loader.next(1, 0)
        assert batch is not None
        batches.append(batch)
        loader.commit(batch)
    readers = [numbers(batch)[0] for batch in batches]
    assert len(set(readers)) == 2
    if end == "close":
        loader.close()
    else:
        del loader
    assert all(map(ended, readers)), "when it is gone, so are they"


def test_a_closed_loader_can_go_on() -> None:
    loader = ElasticLoader(Numbers(8), batch_size=4, shuffle=False, num_workers=1)
    batch = loader.next(1, 0)
    assert batch is not None
    loader.commit(batch)
    loader.close()
    assert rest_of_epoch(loader) == [[4, 5, 6, 7]]
    loader.close()


def test_new_worker_processes_take_the_place_of_one_that_was_killed() -> None:
    loader = ElasticLoader(WhoReads(1000), batch_size=1, num_workers=1)
    batch = loader.next(1, 0)
    assert batch is not None
    killed = numbers(batch)[0]
    # Where torch's handler of this signal raises is up to chance. What remains is what a step runs into.
    by_torch = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        os.kill(killed, signal.SIGKILL)
        errors = []
        while numbers(batch) == [killed]:
            try:
                batch = loader.next(1, 0)
                assert batch is not None
                loader.commit(batch)
            except (RuntimeError, OSError, EOFError) as error:
                errors.append(error)
        assert 1 <= len(errors) <= 2
        loader.close()
    finally:
        signal.signal(signal.SIGCHLD, by_torch)


PARENT = r"""
import os, time
from farandole.torch.elastic.loader import ElasticLoader

class Stuck:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        os.write(1, f"{os.getpid()}\n".encode())  # a line in one piece: both readers write to this pipe
        time.sleep(600)

ElasticLoader(Stuck(), batch_size=1, num_workers=2).next(1, 0)
"""


def test_worker_processes_do_not_outlive_their_parent() -> None:
    """Not even those that are at something, and would not look for it themselves."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        readers = [int(parent.stdout.readline()) for _ in range(2)]
        assert not any(map(ended, readers))
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: all(map(ended, readers)))


def test_nothing_but_the_first_batch_takes_a_random_number() -> None:
    loader = ElasticLoader(Numbers(100), batch_size=4)
    loader.next(1, 0)
    before = torch.get_rng_state()
    for world in (2, 3, 1):
        batch = loader.next(world, 0)
        assert batch is not None
        loader.commit(batch)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_first_batch_takes_as_many_random_numbers_as_torch() -> None:
    torch.manual_seed(5)
    next(iter(DataLoader(Numbers(100), batch_size=4)))
    by_torch = torch.get_rng_state()
    torch.manual_seed(5)
    ElasticLoader(Numbers(100), batch_size=4).next(1, 0)
    assert torch.equal(torch.get_rng_state(), by_torch)


def test_a_profile_shows_the_reading_as_with_torch() -> None:
    """What is read with a profile and without it are the same batches."""
    loader = ElasticLoader(Numbers(100), batch_size=4, seed=2)
    found = []
    for profiled in (False, True, True, False, True, False):
        with torch.autograd.profiler.profile(enabled=profiled) as seen:
            batch = loader.next(1, 0)
        assert batch is not None
        found.append(numbers(batch))
        loader.commit(batch)
        if profiled:
            assert any(event.name.startswith("enumerate(DataLoader)") for event in seen.function_events or ())
    assert found == rest_of_epoch(ElasticLoader(Numbers(100), batch_size=4, seed=2))[: len(found)]


# --- state, and what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_goes_on_where_it_was(kind: Callable[[int], Any]) -> None:
    loader = ElasticLoader(kind(20), batch_size=3, seed=7)
    batch = loader.next(2, 0)
    assert batch is not None
    loader.commit(batch, lost=[1])
    state = loader.state_dict()
    other = ElasticLoader(kind(20), batch_size=3)
    other.load_state_dict(state)
    assert other.ledger == loader.ledger
    assert rest_of_epoch(other) == rest_of_epoch(loader)


def test_steps_left() -> None:
    loader = ElasticLoader(Numbers(20), batch_size=3)
    assert [loader.steps_left(world) for world in (1, 2, 7)] == [7, 4, 1]
    rest_of_epoch(loader)
    assert loader.steps_left(2) == 0


def test_a_ledger_of_another_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="of 21 samples, but the dataset has 20"):
        ElasticLoader(Numbers(20), batch_size=3).ledger = Ledger(21)
    with pytest.raises(ValueError, match="of a shuffled dataset"):
        ElasticLoader(Stream(20), batch_size=3).ledger = Ledger(UNBOUNDED)
    with pytest.raises(ValueError, match="no state of an ElasticLoader"):
        ElasticLoader(Numbers(20), batch_size=3).load_state_dict({})


@pytest.mark.parametrize(
    ("dataset", "arguments", "message"),
    [
        (Numbers(3), {}, "needs either batch_size"),
        (Numbers(3), {"batch_size": 1, "global_batch_size": 2}, "needs either batch_size"),
        (Numbers(3), {"batch_size": 0}, "must be at least 1"),
        (Numbers(3), {"batch_size": 1, "prefetch_factor": 2}, "num_workers"),
        (Stream(3), {"batch_size": 1, "shuffle": True}, "Stream is read in its own order and cannot be shuffled"),
        (Ranged(3), {"batch_size": 1, "shuffle": True}, "Ranged is read in its own order and cannot be shuffled"),
        (iter([1, 2]), {"batch_size": 1}, "list_iterator cannot be read more than once"),
        (5, {"batch_size": 1}, "int cannot be read more than once"),
    ],
)
def test_what_cannot_be_loaded_is_refused(dataset: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ElasticLoader(dataset, **arguments)


def test_a_dataset_without_a_length_is_refused() -> None:
    class Endless(Dataset[int]):
        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises(ValueError, match="has __getitem__ must have a length: give Endless __len__"):
        ElasticLoader(Endless(), batch_size=1)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_world_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"no rank {rank} in a world of 2"):
        ElasticLoader(Numbers(3), batch_size=1).next(2, rank)


def test_examples_hold() -> None:
    assert doctest.testmod(module).failed == 0
