"""Batches in worlds that change. Several loaders with the same ledger play the ranks."""

import doctest
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from loader_datasets import KINDS, Numbers, Ranged, Stream, Training, numbers, rest_of_epoch, step
from torch.utils.data import (
    DataLoader,
    Dataset,
    StackDataset,
    TensorDataset,
    default_collate,
)

from farandole.torch.elastic import loader as module
from farandole.torch.elastic.loader import ElasticLoader
from farandole.torch.elastic.read_ahead import _SAMPLES_AT_ONCE, _STEPS_AT_ONCE
from farandole.worker.elastic.ledger import UNBOUNDED, Ledger

# What torch says about worker processes on a machine with one core, and Python about those that are forked.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


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


def test_policy_of_the_user_is_asked_in_each_step() -> None:
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


def test_getitems_of_a_dataset_is_used() -> None:
    class Many(Numbers):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [100 + index for index in indices]

    assert rest_of_epoch(ElasticLoader(Many(3), batch_size=2, shuffle=False)) == [[100, 101], [102]]


@pytest.mark.parametrize(("samples", "lent"), [(9, [8, 8]), (10, [8, 9])])
def test_rank_without_samples_borrows_some(samples: int, lent: list[int]) -> None:
    loader = ElasticLoader(Numbers(samples), global_batch_size=4, shuffle=False)
    for _ in range(2):
        loader.commit(loader.next(4, 3))
    batch = loader.next(4, 3)
    assert batch is not None and batch.data is None
    assert [int(number) for number in loader.borrow(batch)] == lent


@pytest.mark.parametrize("num_workers", [0, 2])
def test_drop_last_omits_a_short_step(num_workers: int) -> None:
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


# --- state, and what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_loaded_state_continues_where_it_was_saved(kind: Callable[[int], Any]) -> None:
    loader = ElasticLoader(kind(20), batch_size=3, seed=7)
    batch = loader.next(2, 0)
    assert batch is not None
    loader.commit(batch, lost=[1])
    state = loader.state_dict()
    other = ElasticLoader(kind(20), batch_size=3)
    other.load_state_dict(state)
    assert other.ledger == loader.ledger
    assert rest_of_epoch(other) == rest_of_epoch(loader)


def test_steps_left_counts_the_steps_of_the_epoch() -> None:
    loader = ElasticLoader(Numbers(20), batch_size=3)
    assert [loader.steps_left(world) for world in (1, 2, 7)] == [7, 4, 1]
    rest_of_epoch(loader)
    assert loader.steps_left(2) == 0


def test_a_ledger_of_another_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="for 21 samples, but the dataset has 20"):
        ElasticLoader(Numbers(20), batch_size=3).ledger = Ledger(21)
    with pytest.raises(ValueError, match="for a shuffled dataset"):
        ElasticLoader(Stream(20), batch_size=3).ledger = Ledger(UNBOUNDED)
    with pytest.raises(ValueError, match="not the state of an ElasticLoader"):
        ElasticLoader(Numbers(20), batch_size=3).load_state_dict({})


@pytest.mark.parametrize(
    ("dataset", "arguments", "message"),
    [
        (Numbers(3), {}, "needs either batch_size"),
        (Numbers(3), {"batch_size": 1, "global_batch_size": 2}, "needs either batch_size"),
        (Numbers(3), {"batch_size": 0}, "must be at least 1"),
        (Numbers(3), {"batch_size": 2.0}, r"must be at least 1, but is 2\.0, which is not an integer"),
        (Numbers(3), {"global_batch_size": "4"}, "but is '4', which is not an integer"),
        (Numbers(3), {"batch_size": 1, "prefetch_factor": 2}, "num_workers"),
        (Stream(3), {"batch_size": 1, "shuffle": True}, "Stream is read in its own order and cannot be shuffled"),
        (Ranged(3), {"batch_size": 1, "shuffle": True}, "Ranged is read in its own order and cannot be shuffled"),
        (iter([1, 2]), {"batch_size": 1}, "list_iterator cannot be read more than once"),
        (5, {"batch_size": 1}, "int cannot be read more than once"),
        (Numbers(3), {"batch_size": 1, "seed": "7"}, "seed must be a whole number, but is '7'"),
        (Numbers(3), {"batch_size": 1, "seed": 1.5}, r"seed must be a whole number, but is 1\.5"),
        (Numbers(3), {"batch_size": 1, "num_workers": "2"}, "num_workers must be a whole number from 0 up, but is '2'"),
        (Numbers(3), {"batch_size": 1, "num_workers": 1.0}, r"num_workers must be a whole number .*, but is 1\.0"),
        (Numbers(3), {"batch_size": 1, "num_workers": 1, "prefetch_factor": 0}, "prefetch_factor must be .* from 1 up"),
        (Numbers(3), {"batch_size": 1, "collate_fn": "list"}, "collate_fn must be a function, but is 'list'"),
        (Numbers(3), {"batch_size": 1, "worker_init_fn": 5}, "worker_init_fn must be a function, but is 5"),
        (Numbers(3), {"batch_size": 1, "shuffle": "false"}, "shuffle must be True or False, but is 'false'"),
        (Numbers(3), {"batch_size": 1, "drop_last": "no"}, "drop_last must be True or False, but is 'no'"),
        (Numbers(3), {"batch_size": 1, "pin_memory": "no"}, "pin_memory must be True or False, but is 'no'"),
        (Numbers(3), {"batches": 4}, r"batches must be an object with counts\(world_size\), but is 4"),
    ],
)
def test_datasets_and_options_that_cannot_be_used_are_refused(
    dataset: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ElasticLoader(dataset, **arguments)


def test_a_seed_of_numpy_is_the_same_as_one_of_python() -> None:
    one, other = (ElasticLoader(Numbers(10), batch_size=2, seed=seed) for seed in (3, np.int64(3)))
    assert rest_of_epoch(one) == rest_of_epoch(other)


def test_a_dataset_without_a_length_is_refused() -> None:
    class Endless(Dataset[int]):
        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises(ValueError, match="has __getitem__ must have a length: give Endless __len__"):
        ElasticLoader(Endless(), batch_size=1)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_world_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"{rank} is not a rank of a world of 2"):
        ElasticLoader(Numbers(3), batch_size=1).next(2, rank)


def test_examples_of_the_docstrings_are_right() -> None:
    assert doctest.testmod(module).failed == 0
