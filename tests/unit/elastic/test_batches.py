"""Batch sizes and learning rates, as the world changes."""

import doctest

import pytest

from farandole.worker.elastic import batches as module
from farandole.worker.elastic.batches import (
    ConstantGlobalBatch,
    ConstantWorkerBatch,
    KeepRate,
    LinearScaling,
    ScaledBy,
    based_on_first,
)


@pytest.mark.parametrize(
    ("size", "world", "counts"),
    [(32, 1, (32,)), (32, 4, (8, 8, 8, 8)), (32, 3, (11, 11, 10)), (2, 4, (1, 1, 0, 0)), (1, 1, (1,))],
)
def test_a_global_batch_stays_and_is_shared_evenly(size: int, world: int, counts: tuple[int, ...]) -> None:
    assert ConstantGlobalBatch(size).counts(world) == counts


def test_a_workers_batch_stays() -> None:
    assert ConstantWorkerBatch(8).counts(3) == (8, 8, 8)


@pytest.mark.parametrize("policy", [ConstantGlobalBatch, ConstantWorkerBatch])
def test_batches_of_nothing_are_refused(policy: type[ConstantGlobalBatch] | type[ConstantWorkerBatch]) -> None:
    with pytest.raises(ValueError, match=rf"size of {policy.__name__} must be at least 1, but is 0: give the samples"):
        policy(0)
    with pytest.raises(ValueError, match="size of a world must be at least 1, but is 0"):
        policy(1).counts(0)


def test_the_rate_stays() -> None:
    assert KeepRate().factor(512, 4) == 1


def test_the_rate_grows_with_the_batch_or_the_world() -> None:
    assert LinearScaling(base_batch=64).factor(96, 3) == 1.5
    assert LinearScaling(base_world=2).factor(96, 3) == 1.5


def test_the_rate_is_relative_to_the_first_world() -> None:
    policy = based_on_first(LinearScaling(), global_batch=64)
    assert policy.factor(64, 2) == 1
    assert policy.factor(32, 1) == 0.5
    assert based_on_first(policy, global_batch=32) == policy
    assert based_on_first(KeepRate(), global_batch=32) == KeepRate()


def test_the_rate_may_follow_a_function() -> None:
    assert ScaledBy(lambda batch, world: batch * world).factor(3, 4) == 12


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_function_that_returns_no_rate_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="must return a number above 0, also for a batch of 64 in a world of 2"):
        ScaledBy(lambda batch, world: value).factor(64, 2)


def test_a_base_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="base_world or base_batch, not both"):
        LinearScaling(base_world=2, base_batch=64)
    with pytest.raises(ValueError, match="base_world must be at least 1"):
        LinearScaling(base_world=0)
    with pytest.raises(ValueError, match="base_batch must be at least 1"):
        LinearScaling(base_batch=0)
    with pytest.raises(ValueError, match=r"through based_on_first\(\)"):
        LinearScaling().factor(64, 2)


def test_examples_hold() -> None:
    assert doctest.testmod(module).failed == 0
