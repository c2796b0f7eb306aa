"""Batches of samples in a world that changes: every sample exactly once in an epoch. For JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from farandole.errors import InvalidRequestError
from farandole.numpy.elastic.loader import IndexLoader, number_of_samples
from farandole.worker.elastic.batches import BatchPolicy
from farandole.worker.elastic.loader_arguments import check_function
from farandole.worker.elastic.ranges import is_ranged


class ElasticLoader(IndexLoader):
    """Loads batches, shared among the ranks of the current world.

    Args:
        source: arrays in any structure, whose first dimension is the samples; or a dataset with `__len__` and
            `farandole_read(ranges)`, such as `farandole.parquet.ParquetSource`; or, with `load`, the number of samples.
            The same on all ranks.
        batch_size: samples of each worker in a step.
        global_batch_size: the samples of all workers together, instead of `batch_size`; in a larger world, some workers
            have none.
        batches: another policy instead: an object with `counts(world_size)`, the number of samples of each rank.
        shuffle: whether samples come in a pseudo-random order, which differs in each epoch. None: yes, unless the
            source is read by ranges.
        seed: the seed of that order, the same on all ranks.
        drop_last: whether to omit the last step of an epoch if it would be short, so that functions are compiled for
            one size.
        load: a function that makes a batch from the indices of its samples, an array of int64.

    Raises:
        ValueError: an argument is not valid; the message says what to pass instead.

    Example:
        >>> loader = ElasticLoader((images, labels), batch_size=64)
    """

    def __init__(
        self,
        source: Any,
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        batches: BatchPolicy | None = None,
        shuffle: bool | None = None,
        seed: int = 0,
        drop_last: bool = False,
        load: Callable[[Any], Any] | None = None,
    ) -> None:
        check_function("load", load)
        ranged = source if load is None and is_ranged(source) else None
        if ranged is not None:
            samples = len(source)
        elif load is None:
            samples, load = _of_arrays(source)
        else:
            samples = number_of_samples(source)
        self._load = load
        super().__init__(
            samples,
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            batches=batches,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            ranged=ranged,
        )

    def _once(self, indices: Any) -> Any:
        assert self._load is not None  # It is, unless the source is read by ranges.
        return self._load(indices)

    def _stacked(self, samples: Sequence[Any] | dict[str, Any]) -> Any:
        if isinstance(samples, dict):
            return samples
        return jax.tree.map(lambda *values: np.stack(values), *samples)


def _of_arrays(source: Any) -> tuple[int, Callable[[Any], Any]]:
    """Return the number of samples of arrays, and a function that makes a batch from indices."""
    arrays = jax.tree.map(np.asarray, source)
    lengths = {len(array) if array.ndim else -1 for array in jax.tree.leaves(arrays)}
    if len(lengths) != 1 or min(lengths) < 0:
        raise InvalidRequestError(
            f"the arrays of an ElasticLoader need as many rows as there are samples; these have {sorted(lengths)}."
        )
    return lengths.pop(), lambda indices: jax.tree.map(lambda array: array[indices], arrays)
