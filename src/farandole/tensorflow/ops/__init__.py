"""The ops of which the functions that users call are made: those of the plugin library, or the slower Python ones.

Each function makes one TensorFlow op, in whichever way TensorFlow works at the moment: at once, in the graph of a
`tf.function`, or in a graph of `tf.compat.v1`.
"""

from farandole.tensorflow.ops.python_ops import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_in_place,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    local_rank,
    local_size,
    process_set_included,
    rank,
    reducescatter,
    size,
)

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_in_place",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank",
    "local_size",
    "process_set_included",
    "rank",
    "reducescatter",
    "size",
]
