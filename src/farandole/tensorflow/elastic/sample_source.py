"""The sources of samples for TensorFlow: arrays, sequences, and functions of indices.

The ledger determines the samples that a worker reads in a step, and they change with the world. So a source is read by
indices; a `tf.data` pipeline with its own order could yield a lost worker's samples again only by starting from its
beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from farandole.errors import InvalidRequestError
from farandole.worker.elastic.ledger import Ledger


class ArraySource:
    """Arrays in any structure of tuples, lists and dicts, whose first dimension is the samples."""

    def __init__(self, arrays: Any) -> None:
        """Create a source of arrays or tensors of equal length."""
        self._arrays = tf.nest.map_structure(np.asarray, arrays)
        lengths = {len(array) if array.ndim else -1 for array in tf.nest.flatten(self._arrays)}
        if len(lengths) != 1 or min(lengths) < 0:
            raise InvalidRequestError(
                f"the arrays of an ElasticLoader need as many rows as there are samples; these have {sorted(lengths)}."
            )
        self.samples = lengths.pop()

    def read(self, indices: Any) -> Any:
        """Return the tensors of the samples with these indices."""
        return tf.nest.map_structure(lambda array: tf.convert_to_tensor(array[indices]), self._arrays)


class SequenceSource:
    """Any object with `__len__` and `__getitem__`, which returns one sample."""

    def __init__(self, sequence: Any) -> None:
        """Read from a sequence."""
        self._sequence = sequence
        self.samples = len(sequence)

    def read(self, indices: Any) -> Any:
        """Return the stacked tensors of the samples with these indices."""
        return stacked([self._sequence[int(index)] for index in indices])


def stacked(samples: Sequence[Any]) -> Any:
    """Return the stacked tensors of samples."""
    return tf.nest.map_structure(
        lambda *values: tf.convert_to_tensor(np.stack([np.asarray(value) for value in values])), *samples
    )


Source = ArraySource | SequenceSource


def source_of(given: Any) -> Source:
    """Return a source that reads the user's data by index.

    Raises:
        InvalidRequestError: the data cannot be read by index.
    """
    if isinstance(given, tf.data.Dataset):
        raise InvalidRequestError(
            "a tf.data.Dataset cannot be read from the middle, as samples of lost workers have to be. Pass "
            "ElasticLoader the number of samples, and load=lambda ids: ... which makes a batch of these samples; "
            "TensorFlow runs it in a pipeline that reads ahead. A small dataset can be given as arrays."
        )
    parts = tf.nest.flatten(given)
    if parts and all(hasattr(part, "shape") for part in parts):
        return ArraySource(given)
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return SequenceSource(given)
    raise InvalidRequestError(
        f"an ElasticLoader cannot read a {type(given).__name__}: pass arrays, a sequence of samples, or "
        "the number of samples with load=lambda ids: ..."
    )


class Pipeline:
    """A `tf.data` pipeline that loads later steps ahead, on the assumption that the world does not change.

    Args:
        load: a function that makes a batch from the indices of its samples, an int64 vector.
        parallel_calls: the number of batches that are made at the same time; None: TensorFlow chooses.
        prefetch: the number of batches that are prepared ahead.
    """

    def __init__(self, load: Callable[[Any], Any], parallel_calls: int | None, prefetch: int) -> None:
        self._load = load
        self._begin: tuple[Ledger, Sequence[int], int] | None = None
        self._batches: Iterator[Any] | None = None
        indices = tf.data.Dataset.from_generator(self._indices, output_signature=tf.TensorSpec([None], tf.int64))
        calls = tf.data.AUTOTUNE if parallel_calls is None else parallel_calls
        self._dataset = indices.map(load, num_parallel_calls=calls, deterministic=True).prefetch(prefetch)

    def read(self, ledger: Ledger, counts: Sequence[int], rank: int) -> Any:
        """Return the next batch; after `forget`, the batch of this ledger's next step."""
        if self._batches is None:
            self._begin = ledger, counts, rank
            self._batches = iter(self._dataset)
        return next(self._batches)

    def once(self, indices: Any) -> Any:
        """Return a batch that is not in the order of the pipeline."""
        return self._load(tf.constant(indices, tf.int64))

    def forget(self) -> None:
        """Drop the batches that were read ahead."""
        self._batches = None

    def _indices(self) -> Iterator[Any]:
        """Yield the indices of steps that follow if the world does not change, from the pipeline's first step on."""
        assert self._begin is not None
        ledger, counts, rank = self._begin
        while ledger.left:
            shares, ledger_after = ledger.step(counts)
            if shares[rank]:
                yield np.asarray(ledger.indices(shares[rank]), np.int64)
            ledger = ledger_after
