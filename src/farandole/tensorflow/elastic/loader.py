"""Batches of samples in a world that changes: every sample exactly once in an epoch. For TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from farandole.numpy.elastic.loader import IndexLoader, Place, number_of_samples
from farandole.tensorflow.elastic.sample_source import Pipeline, source_of, stacked
from farandole.worker.elastic.batches import BatchPolicy
from farandole.worker.elastic.ledger import Share
from farandole.worker.elastic.loader_arguments import check_function, read_whole
from farandole.worker.elastic.ranges import is_ranged


class ElasticLoader(IndexLoader):
    """Loads batches, shared among the ranks of the current world.

    Args:
        source: arrays or tensors in any structure of tuples and dicts, whose first dimension is the samples; or a
            sequence, whose elements are samples; or a dataset with `__len__` and `farandole_read(ranges)`, such as
            `farandole.parquet.ParquetSource`; or, with `load`, the number of samples. The same on all ranks.
        batch_size: samples of each worker in a step.
        global_batch_size: the samples of all workers together, instead of `batch_size`; in a larger world, some workers
            have none.
        batches: another policy instead: an object with `counts(world_size)`, the number of samples of each rank.
        shuffle: whether samples come in a pseudo-random order, which differs in each epoch. None: yes, unless the
            source is read by ranges.
        seed: the seed of that order, the same on all ranks.
        drop_last: whether to omit the last step of an epoch if it would be short.
        load: a function that makes a batch from the indices of its samples, an int64 vector of any length. TensorFlow
            runs it as a graph, in a `tf.data` pipeline that reads ahead.
        num_parallel_calls: the number of parallel calls of `load`; None: TensorFlow chooses.
        prefetch: the number of batches of `load` that are prepared ahead.

    Raises:
        ValueError: an argument is not valid; the message says what to pass instead.

    Example:
        >>> loader = ElasticLoader((images, labels), global_batch_size=256)
        >>> load = lambda ids: tf.strings.length(tf.gather(paths, ids))
        >>> loader = ElasticLoader(len(paths), load=load, batch_size=64)
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
        num_parallel_calls: int | None = None,
        prefetch: int = 2,
    ) -> None:
        self._source = None
        self._pipeline = None
        ranged = source if load is None and is_ranged(source) else None
        if ranged is not None:
            samples = len(source)
        elif load is None:
            self._source = source_of(source)
            samples = self._source.samples
        else:
            check_function("load", load)
            # -1 is tf.data.AUTOTUNE.
            if num_parallel_calls is not None:
                read_whole("num_parallel_calls", num_parallel_calls, least=-1)
            read_whole("prefetch", prefetch, least=-1)
            samples = number_of_samples(source)
            self._pipeline = Pipeline(load, num_parallel_calls, prefetch)
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

    def _read(self, place: Place, share: Share) -> Any:
        if self._pipeline is None:
            return super()._read(place, share)
        if self._follows != place:
            self._pipeline.forget()
        return self._pipeline.read(*place)

    def _once(self, indices: Any) -> Any:
        if self._pipeline is not None:
            return self._pipeline.once(indices)
        assert self._source is not None
        return self._source.read(indices)

    def _stacked(self, samples: Sequence[Any] | dict[str, Any]) -> Any:
        if isinstance(samples, dict):
            return {name: tf.convert_to_tensor(column) for name, column in samples.items()}
        return stacked(samples)
