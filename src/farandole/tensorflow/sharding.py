"""Each worker's part of the data: the same number of elements on all, so that none waits for steps that others do not
take.
"""

from __future__ import annotations

from typing import Any, TypeVar

import tensorflow as tf

from farandole.worker.collectives.shares import place_in, share_of
from farandole.worker.core.group import ProcessSet, global_process_set

Data = TypeVar("Data")


def shard(data: Data, process_set: ProcessSet = global_process_set) -> Data:
    """Return this worker's part of a dataset, or of arrays: every n-th element of n workers, from its rank on.

    If the number of elements is not a multiple of the number of workers, the rest is omitted. All workers read a
    dataset from its beginning, in the same order: shard it before it is shuffled, and before slow operations. In
    elastic jobs, use `elastic.ElasticLoader`.

    Args:
        data: a `tf.data.Dataset`, or arrays or tensors in any structure of tuples and dicts, with one row for each
            sample.
        process_set: the ranks that share the data.

    Raises:
        ValueError: this rank is not in the process set, or the arrays have different lengths.

    Example:
        >>> dataset = hvd.shard(tf.data.Dataset.from_tensor_slices(paths))
        >>> dataset = dataset.shuffle(1000).map(load).batch(32)
        >>> images, labels = hvd.shard((images, labels))
    """
    if isinstance(data, tf.data.Dataset):
        return _of_dataset(data, *place_in(process_set))
    own = share_of((len(array) for array in tf.nest.flatten(data)), process_set)
    return tf.nest.map_structure(lambda array: array[own], data)


def _of_dataset(dataset: Any, place: int, size: int) -> Any:
    if size == 1:
        return dataset
    count = int(dataset.cardinality())
    if count >= 0:
        return dataset.take(count // size * size).shard(size, place)
    if count == tf.data.INFINITE_CARDINALITY:
        return dataset.shard(size, place)
    # How many elements there are is known only at the end. So the dataset is cut into turns of one element for each
    # worker, and an incomplete last turn is dropped. Elements may have any structure, so each turn is made a dataset,
    # from which the worker's element is taken by its number.
    turns = dataset.window(size, drop_remainder=True)
    return turns.flat_map(lambda *window: _zipped(window, dataset.element_spec).skip(place).take(1))


def _zipped(window: tuple[Any, ...], spec: Any) -> Any:
    """Return the dataset of a window's elements; a window has a dataset for each component."""
    given = window if isinstance(spec, tuple) else window[0]
    return given if isinstance(given, tf.data.Dataset) else tf.data.Dataset.zip(given)
