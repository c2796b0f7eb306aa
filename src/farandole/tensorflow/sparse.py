"""Reductions of `tf.IndexedSlices`: gradients of a few rows of a large tensor."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from farandole.tensorflow import ops
from farandole.worker.collectives.allgather import ALLGATHER
from farandole.worker.collectives.declaration import PLAIN
from farandole.worker.core.dtype import Average
from farandole.worker.core.group import ProcessSet


def allreduce_slices(
    slices: Any,
    *,
    op: int,
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> Any:
    """Return the rows of all ranks; rows with the same index are not summed.

    Args:
        slices: the result of `checks.slices`.
        op: Average or Sum.
        name: the name of the call, if it has one.
        process_set: the ranks that take part.
        ignore_name_scope: the same as for `allreduce`.
    """
    gathered = ops.run(
        ALLGATHER,
        PLAIN,
        [slices.values],
        {},
        name=None if name is None else f"{name}.values",
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )
    (values,) = gathered.outputs
    gathered = ops.run(
        ALLGATHER,
        PLAIN,
        [slices.indices],
        {},
        name=None if name is None else f"{name}.indices",
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )
    (indices,), (counts,) = gathered
    if op == Average:
        # There is one count for each rank. That is right also where the graph is used in a later world, of another
        # size.
        values = values / tf.cast(tf.size(counts), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)
