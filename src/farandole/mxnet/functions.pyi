# Rendered from farandole.worker.collectives by `make fix` (tools/stubs.py). Do not edit.
from collections.abc import Iterable, Sequence
from typing import Any

import mxnet as mx

from farandole.worker.core.group import ProcessSet, global_process_set

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reduce",
    "grouped_reduce_",
    "grouped_reducescatter",
    "reduce",
    "reduce_",
    "reducescatter",
]

def allreduce(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    compression: Any = ...,
) -> mx.nd.NDArray:
    """Reduce an array over all ranks of a process set and return the result, the same on all of them.

    Args:
        tensor: a dense array in host memory, of the same element type on all ranks.
        average: Horovod's older way to choose between Average and Sum.
        name: ranks' calls match by name; unnamed calls match by their order.
        priority: of the calls whose arrays are ready, MXNet's engine begins those with the highest one first.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.
        process_set: the ranks that take part.
        op: Average (the default), Sum, Adasum, Min, Max or Product. The average of integers is truncated toward zero.
            Of truth values, Sum and Max are "or", Product and Min are "and".
        compression: the compression of the array, such as `Compression.fp16`. What `Compression.int8` and the like
            do not send is lost, unless they remember it: see `Recipe.with_feedback`.

    Raises:
        ValueError: the call is wrong by itself.
        mxnet.base.MXNetError: where the result is used: the ranks' arrays do not fit together, or a worker was lost.
    """

def allreduce_(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> mx.nd.NDArray:
    """Do what `allreduce` does, in place, and return what was given."""

def grouped_allreduce(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    compression: Any = ...,
) -> list[mx.nd.NDArray]:
    """Do what `allreduce` does for several arrays together; they may differ in shape and type."""

def grouped_allreduce_(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> tuple[mx.nd.NDArray, ...]:
    """Do what `grouped_allreduce` does, in place, and return what was given."""

def allgather(
    tensor: mx.nd.NDArray,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Concatenate the arrays of all ranks of a process set along the first dimension, in rank order.

    Ranks may differ in the first dimension only, which may be 0.

    Args:
        tensor: a dense array in host memory, of the same element type on all ranks.
        name: ranks' calls match by name; unnamed calls match by their order.
        priority: of the calls whose arrays are ready, MXNet's engine begins those with the highest one first.
        process_set: the ranks that take part.

    Raises:
        ValueError: the call is wrong by itself.
        mxnet.base.MXNetError: where the result is used: the ranks' arrays do not fit together, or a worker was lost.
    """

def grouped_allgather(
    tensors: Sequence[mx.nd.NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[mx.nd.NDArray]:
    """Do what `allgather` does for several arrays together; they may differ in shape and type."""

def broadcast(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Return the root's array on every rank of a process set.

    Args:
        tensor: a dense array in host memory, of the same element type on all ranks.
        root_rank: the rank whose array is sent; a rank in the world, also for a process set.
        name: ranks' calls match by name; unnamed calls match by their order.
        priority: of the calls whose arrays are ready, MXNet's engine begins those with the highest one first.
        process_set: the ranks that take part.

    Raises:
        ValueError: the call is wrong by itself.
        mxnet.base.MXNetError: where the result is used: the ranks' arrays do not fit together, or a worker was lost.
    """

def broadcast_(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Do what `broadcast` does, in place, and return what was given."""

def alltoall(
    tensor: mx.nd.NDArray,
    splits: mx.nd.NDArray | Iterable[int] | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of the array to every rank of a process set, and return those that all ranks sent to this one.

    Ranks may differ in the first dimension only.

    Args:
        tensor: a dense array in host memory, of the same element type on all ranks.
        splits: the number of rows for each rank, in rank order; rows that are left over are not sent. A 1-D array of
            int32 or a list. None gives equally many to each, which the first dimension must allow.
        name: ranks' calls match by name; unnamed calls match by their order.
        priority: of the calls whose arrays are ready, MXNet's engine begins those with the highest one first.
        process_set: the ranks that take part.

    Returns:
        Without splits, the rows received, in rank order. With splits, a pair of these and `received_splits`: the number
        of rows from each rank, int32 (int64 if a number does not fit), on the device of `splits`.

    Raises:
        ValueError: the call is wrong by itself.
        mxnet.base.MXNetError: where the result is used: the ranks' arrays do not fit together, or a worker was lost.
    """

def reducescatter(
    tensor: mx.nd.NDArray,
    op: int = 0,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = ...,
) -> mx.nd.NDArray:
    """Reduce an array over all ranks of a process set, and return this rank's rows of the result.

    The first dimension is divided among the ranks, in rank order; if it cannot be divided equally, the first ranks get
    one row more.

    Args:
        tensor: a dense array in host memory, of the same element type on all ranks.
        op: Average (the default), Sum, Min, Max or Product.
        name: ranks' calls match by name; unnamed calls match by their order.
        priority: of the calls whose arrays are ready, MXNet's engine begins those with the highest one first.
        process_set: the ranks that take part.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.
        compression: the compression of the array, such as `Compression.fp16`.

    Raises:
        ValueError: the call is wrong by itself.
        mxnet.base.MXNetError: where the result is used: the ranks' arrays do not fit together, or a worker was lost.
    """

def grouped_reducescatter(
    tensors: Sequence[mx.nd.NDArray],
    op: int = 0,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = ...,
) -> list[mx.nd.NDArray]:
    """Do what `reducescatter` does for several arrays together; they may differ in shape and type."""

def reduce(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> mx.nd.NDArray:
    """Reduce an array over all ranks of a process set, and return the result on the root.

    Other ranks return their input.

    Args:
        tensor: a dense array in host memory, of the same element type on all ranks.
        root_rank: the rank that gets the result; a rank in the world, also for a process set.
        name: ranks' calls match by name; unnamed calls match by their order.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: the ranks that take part.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.
        priority: of the calls whose arrays are ready, MXNet's engine begins those with the highest one first.

    Raises:
        ValueError: the call is wrong by itself.
        mxnet.base.MXNetError: where the result is used: the ranks' arrays do not fit together, or a worker was lost.
    """

def reduce_(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> mx.nd.NDArray:
    """Do what `reduce` does, in place, and return what was given."""

def grouped_reduce(
    tensors: Sequence[mx.nd.NDArray],
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> list[mx.nd.NDArray]:
    """Do what `reduce` does for several arrays together; they may differ in shape and type."""

def grouped_reduce_(
    tensors: Sequence[mx.nd.NDArray],
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
) -> tuple[mx.nd.NDArray, ...]:
    """Do what `grouped_reduce` does, in place, and return what was given."""
