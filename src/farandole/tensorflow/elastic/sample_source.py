"""The sources of samples for TensorFlow: arrays, sequences, and functions of indices.

What a worker reads in a step follows from the ledger, and changes when the world does. So a source is asked by indices;
a pipeline of `tf.data` that goes through samples in an order of its own could give a lost worker's samples out again
only by being gone through from its beginning.
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
        """Take arrays or tensors of equal length."""
        self._arrays = tf.nest.map_structure(np.asarray, arrays)
        lengths = {len(array) if array.ndim else -1 for array in tf.nest.flatten(self._arrays)}
        if len(lengths) != 1 or min(lengths) < 0:
            raise InvalidRequestError(
                f"the arrays of an ElasticLoader need as many rows as there are samples; these have {sorted(lengths)}."
            )
        self.samples = lengths.pop()

    def read(self, indices: Any) -> Any:
        """Return tensors of these samples."""
        return tf.nest.map_structure(lambda array: tf.convert_to_tensor(array[indices]), self._arrays)


class SequenceSource:
    """Whatever has `__len__` and `__getitem__`, which returns one sample."""

    def __init__(self, sequence: Any) -> None:
        """Read from a sequence."""
        self._sequence = sequence
        self.samples = len(sequence)

    def read(self, indices: Any) -> Any:
        """Return tensors of these samples, stacked."""
        return stacked([self._sequence[int(index)] for index in indices])


def stacked(samples: Sequence[Any]) -> Any:
    """Return tensors of samples, stacked."""
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
        f"an ElasticLoader cannot read what is of type {type(given).__name__}: pass arrays, a sequence of samples, or "
        "the number of samples with load=lambda ids: ..."
    )


class Pipeline:
    """A `tf.data` pipeline that loads the steps to come, on the assumption that the world stays.

    Args:
        load: a function that makes a batch from the indices of its samples, an int64 vector.
        parallel_calls: the number of batches that are made at the same time; None lets TensorFlow choose.
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
        """Return the next batch; after `forget`, that of the step which is taken from this ledger."""
        if self._batches is None:
            self._begin = ledger, counts, rank
            self._batches = iter(self._dataset)
        return next(self._batches)

    def once(self, indices: Any) -> Any:
        """Return a batch that is not in the order of the pipeline."""
        return self._load(tf.constant(indices, tf.int64))

    def forget(self) -> None:
        """Drop what was read ahead."""
        self._batches = None

    def _indices(self) -> Iterator[Any]:
        """Go through the steps that come if the world stays, from the one for which the pipeline begins."""
        assert self._begin is not None
        ledger, counts, rank = self._begin
        while ledger.left:
            shares, ledger_after = ledger.step(counts)
            if shares[rank]:
                yield np.asarray(ledger.indices(shares[rank]), np.int64)
            ledger = ledger_after
