# Rendered from farandole.worker.collectives by `make fix` (tools/stubs.py). Do not edit.
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from farandole.jax.trees import Tree
from farandole.worker.core.group import ProcessSet, global_process_set

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reduce",
    "grouped_reduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
]

def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = ...,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> jax.Array:
    """Reduce an array over all ranks of a process set and return the result, the same on all of them.

    Differentiable. The gradient of Average, Sum and Adasum is the same reduction of the gradients; of Min and Max, the
    sum of the gradients where this rank's element is the result, shared equally; of Product, the sum of the gradients
    times the product of the other ranks' elements.

    Args:
        tensor: an array, or what `jax.numpy.asarray` makes one of; of the same element type on all ranks.
        average: Horovod's older way to choose between Average and Sum.
        name: ranks' calls match by name; unnamed calls match by their order.
        compression: the compression of the array, such as `Compression.fp16`. What `Compression.int8` and the like
            do not send is lost, unless they remember it: see `Recipe.with_feedback`.
        op: Average (the default), Sum, Adasum, Min, Max or Product. The average of integers is truncated toward zero.
            Of truth values, Sum and Max are "or", Product and Min are "and".
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.
        process_set: the ranks that take part.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' arrays do not fit together, or a worker was lost.
    """

def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin `allreduce` and return a handle for `synchronize`. Not differentiable.

    The array must not change until then.
    """

def grouped_allreduce(
    tensors: Tree,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = ...,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tree:
    """Do what `allreduce` does for all arrays of a structure together; they may differ in shape and type."""

def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin `grouped_allreduce` and return a handle for `synchronize`. Not differentiable.

    The arrays must not change until then.
    """

def allgather(
    tensor: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> jax.Array:
    """Concatenate the arrays of all ranks of a process set along the first dimension, in rank order.

    Ranks may differ in the first dimension only, which may be 0.

    Differentiable. The gradient is the average of the gradients, of which each rank takes the rows of its input.

    Args:
        tensor: an array, or what `jax.numpy.asarray` makes one of; of the same element type on all ranks.
        name: ranks' calls match by name; unnamed calls match by their order.
        process_set: the ranks that take part.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' arrays do not fit together, or a worker was lost.
    """

def allgather_async(
    tensor: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin `allgather` and return a handle for `synchronize`. Not differentiable.

    The array must not change until then.
    """

def grouped_allgather(
    tensors: Tree,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tree:
    """Do what `allgather` does for all arrays of a structure together; they may differ in shape and type."""

def grouped_allgather_async(
    tensors: Sequence[Any],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin `grouped_allgather` and return a handle for `synchronize`. Not differentiable.

    The arrays must not change until then.
    """

def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> jax.Array:
    """Return the root's array on every rank of a process set.

    Differentiable. The gradient is the average of the gradients on the root, and zero elsewhere.

    Args:
        tensor: an array, or what `jax.numpy.asarray` makes one of; of the same element type on all ranks.
        root_rank: the rank whose array is sent; a rank in the world, also for a process set.
        name: ranks' calls match by name; unnamed calls match by their order.
        process_set: the ranks that take part.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' arrays do not fit together, or a worker was lost.
    """

def broadcast_async(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin `broadcast` and return a handle for `synchronize`. Not differentiable.

    The array must not change until then.
    """

def alltoall(
    tensor: Any,
    splits: Any | Iterable[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of the array to every rank of a process set, and return those that all ranks sent to this one.

    Ranks may differ in the first dimension only.

    Differentiable. Gradients are sent back to the ranks that sent the rows; rows that were not sent have zero.

    Args:
        tensor: an array, or what `jax.numpy.asarray` makes one of; of the same element type on all ranks.
        splits: the number of rows for each rank, in rank order; rows that are left over are not sent. A 1-D array of
            int32 or a list. None gives equally many to each, which the first dimension must allow.
        name: ranks' calls match by name; unnamed calls match by their order.
        process_set: the ranks that take part.

    Returns:
        Without splits, the rows received, in rank order. With splits, a pair of these and `received_splits`: the number
        of rows from each rank, int32 (int64 if a number does not fit), on the device of `splits`.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' arrays do not fit together, or a worker was lost.
    """

def alltoall_async(
    tensor: Any,
    splits: Any | Iterable[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin `alltoall` and return a handle for `synchronize`. Not differentiable.

    The array must not change until then.
    """

def reducescatter(
    tensor: Any,
    name: str | None = None,
    compression: Any = ...,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> jax.Array:
    """Reduce an array over all ranks of a process set, and return this rank's rows of the result.

    The first dimension is divided among the ranks, in rank order; if it cannot be divided equally, the first ranks get
    one row more.

    Differentiable. There is a gradient for Average and Sum: all ranks' gradients, gathered; for Sum times the number of
    ranks, as in Horovod.

    Args:
        tensor: an array, or what `jax.numpy.asarray` makes one of; of the same element type on all ranks.
        name: ranks' calls match by name; unnamed calls match by their order.
        compression: the compression of the array, such as `Compression.fp16`.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: the ranks that take part.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' arrays do not fit together, or a worker was lost.
    """

def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin `reducescatter` and return a handle for `synchronize`. Not differentiable.

    The array must not change until then.
    """

def grouped_reducescatter(
    tensors: Tree,
    name: str | None = None,
    compression: Any = ...,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tree:
    """Do what `reducescatter` does for all arrays of a structure together; they may differ in shape and type."""

def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin `grouped_reducescatter` and return a handle for `synchronize`. Not differentiable.

    The arrays must not change until then.
    """

def reduce(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> jax.Array:
    """Reduce an array over all ranks of a process set, and return the result on the root.

    Other ranks return their input.

    Differentiable. There is a gradient for Average and Sum: that of the root's result, on every rank. The results of
    other ranks do not contribute.

    Args:
        tensor: an array, or what `jax.numpy.asarray` makes one of; of the same element type on all ranks.
        root_rank: the rank that gets the result; a rank in the world, also for a process set.
        name: ranks' calls match by name; unnamed calls match by their order.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: the ranks that take part.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' arrays do not fit together, or a worker was lost.
    """

def reduce_async(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin `reduce` and return a handle for `synchronize`. Not differentiable.

    The array must not change until then.
    """

def grouped_reduce(
    tensors: Tree,
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tree:
    """Do what `reduce` does for all arrays of a structure together; they may differ in shape and type."""

def grouped_reduce_async(
    tensors: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin `grouped_reduce` and return a handle for `synchronize`. Not differentiable.

    The arrays must not change until then.
    """
