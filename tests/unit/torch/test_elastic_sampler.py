"""The sampler: every sample once in an epoch, whatever the world does, and equally many for each rank."""

from __future__ import annotations

import random
from typing import Any

import pytest
from torch.utils.data import DataLoader

from farandole.torch.elastic import sampler as home
from farandole.torch.elastic.sampler import ElasticSampler


class Place:
    """Which rank the next sampler is, and of how many."""

    rank = 0
    size = 1


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place()
    monkeypatch.setattr(home, "rank", lambda: place.rank)
    monkeypatch.setattr(home, "size", lambda: place.size)
    return place


def samplers(place: Place, size: int, length: int, **options: Any) -> list[ElasticSampler]:
    """Return the samplers of all ranks of a world."""
    made = []
    for place.rank in range(size):
        place.size = size
        made.append(ElasticSampler(range(length), **options))
    return made


def moved(place: Place, old: ElasticSampler, size: int) -> list[ElasticSampler]:
    """Return the samplers of another world, with the state of the old one."""
    made = samplers(place, size, len(old.dataset), shuffle=old.shuffle, seed=old.seed)
    for place.rank, sampler in enumerate(made):
        sampler.load_state_dict(old.state_dict())
    return made


@pytest.mark.parametrize(("size", "length"), [(1, 7), (2, 8), (3, 8), (5, 3), (4, 1), (3, 0)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_all_samples_are_shared_out_evenly(place: Place, size: int, length: int, shuffle: bool) -> None:
    shares = [list(sampler) for sampler in samplers(place, size, length, shuffle=shuffle)]
    assert {index for share in shares for index in share} == set(range(length))
    assert {len(share) for share in shares} == {-(-length // size)}


def test_the_order_is_horovods(place: Place) -> None:
    """By Python's shuffle, and every so-many-th sample, so that a resumed training sees what it would have seen."""
    order = list(range(10))
    random.Random(7 + 3).shuffle(order)
    first, second = samplers(place, 2, 10, seed=7)
    for place.rank, sampler in enumerate([first, second]):
        sampler.set_epoch(3)
    assert (list(first), list(second)) == (order[0::2], order[1::2])
    assert (first.num_replicas, second.rank, first.num_samples, first.total_size, len(first)) == (2, 1, 5, 10, 5)


def test_epochs_differ_only_when_shuffled(place: Place) -> None:
    for shuffle in (True, False):
        (sampler,) = samplers(place, 1, 32, shuffle=shuffle)
        before = list(sampler)
        sampler.set_epoch(1)
        assert (list(sampler) != before) is shuffle


def test_only_the_remaining_samples_are_shared_out_again(place: Place) -> None:
    first = samplers(place, 3, 24)
    seen = [index for sampler in first for index in list(sampler)[:4]]
    for sampler in first:
        sampler.record_batch(0, 2)
        sampler.record_batch(1, 2)
    assert {sampler.processed_num for sampler in first} == {12}
    assert first[0].state_dict() == {"epoch": 0, "processed_num": 12}
    second = moved(place, first[1], 2)
    seen += [index for sampler in second for index in list(sampler)[:3]]
    for sampler in second:
        sampler.record_batch(0, 3)
    third = moved(place, second[0], 1)
    seen += list(third[0])
    assert sorted(seen) == list(range(24))


def test_recorded_batches_take_effect_in_the_next_world(place: Place) -> None:
    (sampler,) = samplers(place, 1, 8)
    before = list(sampler)
    sampler.record_batch(0, 4)
    assert list(sampler) == before and len(sampler) == 8
    sampler.reset()
    assert list(sampler) == before[4:] and len(sampler) == 4


@pytest.mark.parametrize("left", [1, 2, 3])
def test_fewer_samples_than_ranks_are_repeated(place: Place, left: int) -> None:
    """Horovod's sampler failed where there were fewer samples left than it had to fill up with."""
    (before,) = samplers(place, 1, 20)
    before.record_batch(0, 20 - left)
    shares = [list(sampler) for sampler in moved(place, before, 8)]
    assert [len(share) for share in shares] == [1] * 8
    assert len({index for share in shares for index in share}) == left


def test_no_samples_are_left_after_the_last_batch(place: Place) -> None:
    (before,) = samplers(place, 1, 5)
    before.record_batch(0, 8)  # The last batch is counted as a whole one.
    assert [list(sampler) for sampler in moved(place, before, 2)] == [[], []]


def test_data_loader_batches_the_samples_of_its_rank(place: Place) -> None:
    first, second = samplers(place, 2, 10, shuffle=False)
    batches = [batch.tolist() for batch in DataLoader(first.dataset, batch_size=2, sampler=first)]  # type: ignore[arg-type]
    assert batches == [[0, 2], [4, 6], [8]]
    assert [batch.tolist() for batch in DataLoader(second.dataset, batch_size=2, sampler=second)][2] == [9]  # type: ignore[arg-type]


def test_sampler_before_init_is_refused() -> None:
    with pytest.raises(ValueError, match=r"use hvd\.init\(\)"):
        ElasticSampler(range(4))


def test_text_is_no_flag() -> None:
    with pytest.raises(ValueError, match="shuffle must be True or False, but is 'False'"):
        ElasticSampler(range(4), shuffle="False")  # type: ignore[arg-type]
