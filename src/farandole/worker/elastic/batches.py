"""Policies for the number of samples that each rank takes in a step, and for the learning rate, as the world changes.

A policy is a value with one method. Any object with that method is a policy, so users may write their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import msgspec

from farandole.errors import InvalidRequestError


class BatchPolicy(Protocol):
    """A policy for the number of samples that each rank takes in a step. All ranks must have the same one."""

    def counts(self, world_size: int) -> tuple[int, ...]:
        """Return the samples of each rank in a full step, by rank."""
        ...


class ConstantGlobalBatch(msgspec.Struct, frozen=True):
    """The number of samples of all ranks together is the same in every world.

    So the training is the same, only faster or slower. The samples are divided as evenly as possible; the first ranks
    take one more if there is a remainder. In a world of more ranks than samples, the last ones take none: they take
    part in the step without contributing to it.

    Args:
        size: samples in a step.

    Raises:
        ValueError: the size is not positive.

    Example:
        >>> ConstantGlobalBatch(32).counts(3)
        (11, 11, 10)
    """

    size: int

    def __post_init__(self) -> None:
        _check_positive(
            self.size, "the size of ConstantGlobalBatch", "give the samples that all workers take together in a step"
        )

    def counts(self, world_size: int) -> tuple[int, ...]:
        """Return the samples of each rank in a full step, by rank."""
        _check_positive(world_size, "the size of a world", "ask for a world that has workers")
        each, more = divmod(self.size, world_size)
        return (each + 1,) * more + (each,) * (world_size - more)


class ConstantWorkerBatch(msgspec.Struct, frozen=True):
    """Each rank takes the same number of samples in every world: the step of a larger world has more samples.

    Args:
        size: samples of one rank.

    Raises:
        ValueError: the size is not positive.

    Example:
        >>> ConstantWorkerBatch(32).counts(3)
        (32, 32, 32)
    """

    size: int

    def __post_init__(self) -> None:
        _check_positive(
            self.size, "the size of ConstantWorkerBatch", "give the samples that one worker takes in a step"
        )

    def counts(self, world_size: int) -> tuple[int, ...]:
        """Return the samples of each rank in a full step, by rank."""
        _check_positive(world_size, "the size of a world", "ask for a world that has workers")
        return (self.size,) * world_size


def chosen_batches(batch_size: int | None, global_batch_size: int | None, batches: BatchPolicy | None) -> BatchPolicy:
    """Return the policy that a loader was given, in one of three ways.

    Args:
        batch_size: samples of each worker in a step.
        global_batch_size: samples of all workers together.
        batches: a policy.

    Raises:
        InvalidRequestError: none of them was given, or more than one; or `batches` is not a policy.
    """
    if [batch_size, global_batch_size, batches].count(None) != 2:
        raise InvalidRequestError(
            "an ElasticLoader needs either batch_size (samples of each worker), global_batch_size (samples of all "
            "workers together) or batches (a policy of your own)."
        )
    if batch_size is not None:
        return ConstantWorkerBatch(batch_size)
    if global_batch_size is not None:
        return ConstantGlobalBatch(global_batch_size)
    if batches is None or not hasattr(batches, "counts"):
        raise InvalidRequestError(f"batches must be an object with counts(world_size), but is {batches!r:.80}.")
    return batches


class RatePolicy(Protocol):
    """The rule for the learning rate as the world changes. All ranks must have the same policy."""

    def factor(self, global_batch: int, world_size: int) -> float:
        """Return the factor of the first world's learning rate.

        Args:
            global_batch: samples of all ranks in a full step.
            world_size: number of ranks.
        """
        ...


class KeepRate(msgspec.Struct, frozen=True):
    """The learning rate stays the same, which suits a constant global batch."""

    def factor(self, global_batch: int, world_size: int) -> float:
        """Return 1."""
        return 1.0


class LinearScaling(msgspec.Struct, frozen=True):
    """The learning rate grows with the batch (Goyal et al., "Accurate, Large Minibatch SGD", 2017).

    Without a base, the learning rate applies to the first world, which `based_on_first` sets as the base.

    Args:
        base_world: the number of workers that the learning rate was chosen for, with which the factor is 1.
        base_batch: the global batch that the learning rate was chosen for, instead of `base_world`.

    Raises:
        ValueError: both are given, or one is not positive.

    Example:
        >>> LinearScaling(base_batch=256).factor(global_batch=512, world_size=4)
        2.0
        >>> LinearScaling(base_world=8).factor(global_batch=512, world_size=4)
        0.5
    """

    base_world: int | None = None
    base_batch: int | None = None

    def __post_init__(self) -> None:
        if self.base_world is not None and self.base_batch is not None:
            raise ValueError(
                "the learning rate was chosen for a number of workers or for a batch: give LinearScaling base_world or "
                "base_batch, not both."
            )
        if self.base_world is not None:
            _check_positive(self.base_world, "base_world", "give the workers that the learning rate was chosen for")
        if self.base_batch is not None:
            _check_positive(
                self.base_batch, "base_batch", "give the global batch that the learning rate was chosen for"
            )

    def factor(self, global_batch: int, world_size: int) -> float:
        """Return the ratio of the batch, or of the world's size, to the one that the rate was chosen for.

        Raises:
            ValueError: the policy has no base yet.
        """
        if self.base_world is not None:
            return world_size / self.base_world
        if self.base_batch is not None:
            return global_batch / self.base_batch
        raise ValueError("this LinearScaling does not know the first world: pass it through based_on_first() there.")


class ScaledBy(msgspec.Struct, frozen=True):
    """The learning rate is multiplied by a function of the user.

    Args:
        function: a function from the global batch and the world size to the factor of the learning rate.

    Example:
        >>> ScaledBy(lambda global_batch, world_size: (global_batch / 256) ** 0.5).factor(1024, 4)
        2.0
    """

    function: Callable[[int, int], float]

    def factor(self, global_batch: int, world_size: int) -> float:
        """Return the result of the function.

        Raises:
            ValueError: the result is not a number above 0.
        """
        factor = float(self.function(global_batch, world_size))
        if not (math.isfinite(factor) and factor > 0):
            raise ValueError(
                f"the learning rate cannot be scaled by {factor}: the function of ScaledBy must return a number above "
                f"0, also for a batch of {global_batch} in a world of {world_size}."
            )
        return factor


def based_on_first(policy: RatePolicy, global_batch: int) -> RatePolicy:
    """Return a policy that is relative to the first world, given its global batch.

    Call this in the first world. Workers that join later need the result, not the user's policy.

    Args:
        policy: the user's policy. Only a `LinearScaling` without a base is changed.
        global_batch: samples of all ranks in a full step of the first world.

    Example:
        >>> based_on_first(LinearScaling(), global_batch=64).factor(128, 4)
        2.0
    """
    if policy == LinearScaling():
        return LinearScaling(base_batch=global_batch)
    return policy


def _check_positive(number: int, what: str, what_to_do: str) -> None:
    is_integer = hasattr(number, "__index__")
    if not is_integer or number < 1:
        but = "" if is_integer else ", which is not an integer"
        raise ValueError(f"{what} must be at least 1, but is {number!r}{but}: {what_to_do}.")
