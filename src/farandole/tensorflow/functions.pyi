# Rendered from farandole.worker.collectives by `make fix` (tools/stubs.py). Do not edit.
from collections.abc import Iterable, Sequence
from typing import Any

from farandole.worker.core.group import ProcessSet, global_process_set

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reduce",
    "grouped_reducescatter",
    "reduce",
    "reducescatter",
]

def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = ...,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor over all ranks of a process set and return the result, the same on all of them.

    Differentiable. The gradient of Average, Sum and Adasum is the same reduction of the gradients; of Min and Max, the
    sum of the gradients where this rank's element is the result, shared equally; of Product, the sum of the gradients
    times the product of the other ranks' elements.

    Args:
        tensor: a tensor, or what `tf.convert_to_tensor` makes one of; an allreduce takes `tf.IndexedSlices`, too.
        average: Horovod's older way to choose between Average and Sum.
        device_dense: the device on which the op is placed.
        device_sparse: the same, for `tf.IndexedSlices`.
        compression: the compression of the tensor, such as `Compression.fp16`.
        op: Average (the default), Sum, Adasum, Min, Max or Product. The average of integers is truncated toward zero.
            Of truth values, Sum and Max are "or", Product and Min are "and".
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.
        name: ranks' calls match by name; unnamed calls match by their order.
        process_set: the ranks that take part.
        ignore_name_scope: whether the name counts without the name scope in which the call is made.

    Raises:
        ValueError: the call is wrong by itself.
        tf.errors.OpError: the ranks' tensors do not fit together, or a worker was lost.
    """

def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = ...,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Do what `allreduce` does for several tensors together; they may differ in shape and type."""

def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenate the tensors of all ranks of a process set along the first dimension, in rank order.

    Ranks may differ in the first dimension only, which may be 0.

    Differentiable. The gradient is the average of the gradients, of which each rank takes the rows of its input.

    Args:
        tensor: a tensor, or what `tf.convert_to_tensor` makes one of; an allreduce takes `tf.IndexedSlices`, too.
        name: ranks' calls match by name; unnamed calls match by their order.
        ignore_name_scope: whether the name counts without the name scope in which the call is made.
        process_set: the ranks that take part.

    Raises:
        ValueError: the call is wrong by itself.
        tf.errors.OpError: the ranks' tensors do not fit together, or a worker was lost.
    """

def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Do what `allgather` does for several tensors together; they may differ in shape and type."""

def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's tensor on every rank of a process set.

    Differentiable. The gradient is the average of the gradients on the root, and zero elsewhere.

    Args:
        tensor: a tensor, or what `tf.convert_to_tensor` makes one of; an allreduce takes `tf.IndexedSlices`, too.
        root_rank: the rank whose tensor is sent; a rank in the world, also for a process set.
        name: ranks' calls match by name; unnamed calls match by their order.
        ignore_name_scope: whether the name counts without the name scope in which the call is made.
        process_set: the ranks that take part.

    Raises:
        ValueError: the call is wrong by itself.
        tf.errors.OpError: the ranks' tensors do not fit together, or a worker was lost.
    """

def alltoall(
    tensor: Any,
    splits: Any | Iterable[int] | None = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of the tensor to every rank of a process set, and return those that all ranks sent to this one.

    Ranks may differ in the first dimension only.

    Differentiable. Gradients are sent back to the ranks that sent the rows; rows that were not sent have zero.

    Args:
        tensor: a tensor, or what `tf.convert_to_tensor` makes one of; an allreduce takes `tf.IndexedSlices`, too.
        splits: the number of rows for each rank, in rank order; rows that are left over are not sent. A 1-D tensor of
            int32 or a list. None gives equally many to each, which the first dimension must allow.
        name: ranks' calls match by name; unnamed calls match by their order.
        ignore_name_scope: whether the name counts without the name scope in which the call is made.
        process_set: the ranks that take part.

    Returns:
        Without splits, the rows received, in rank order. With splits, a pair of these and `received_splits`: the number
        of rows from each rank, int32 (int64 if a number does not fit), on the device of `splits`.

    Raises:
        ValueError: the call is wrong by itself.
        tf.errors.OpError: the ranks' tensors do not fit together, or a worker was lost.
    """

def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = ...,
    op: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce a tensor over all ranks of a process set, and return this rank's rows of the result.

    The first dimension is divided among the ranks, in rank order; if it cannot be divided equally, the first ranks get
    one row more.

    Differentiable. There is a gradient for Average and Sum: all ranks' gradients, gathered; for Sum times the number of
    ranks, as in Horovod.

    Args:
        tensor: a tensor, or what `tf.convert_to_tensor` makes one of; an allreduce takes `tf.IndexedSlices`, too.
        device_dense: the device on which the op is placed.
        compression: the compression of the tensor, such as `Compression.fp16`.
        op: Average (the default), Sum, Min, Max or Product.
        name: ranks' calls match by name; unnamed calls match by their order.
        process_set: the ranks that take part.
        ignore_name_scope: whether the name counts without the name scope in which the call is made.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.

    Raises:
        ValueError: the call is wrong by itself.
        tf.errors.OpError: the ranks' tensors do not fit together, or a worker was lost.
    """

def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = ...,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Do what `reducescatter` does for several tensors together; they may differ in shape and type."""

def reduce(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor over all ranks of a process set, and return the result on the root.

    Other ranks return their input.

    Differentiable. There is a gradient for Average and Sum: that of the root's result, on every rank. The results of
    other ranks do not contribute.

    Args:
        tensor: a tensor, or what `tf.convert_to_tensor` makes one of; an allreduce takes `tf.IndexedSlices`, too.
        root_rank: the rank that gets the result; a rank in the world, also for a process set.
        name: ranks' calls match by name; unnamed calls match by their order.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: the ranks that take part.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.
        ignore_name_scope: whether the name counts without the name scope in which the call is made.

    Raises:
        ValueError: the call is wrong by itself.
        tf.errors.OpError: the ranks' tensors do not fit together, or a worker was lost.
    """

def grouped_reduce(
    tensors: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """Do what `reduce` does for several tensors together; they may differ in shape and type."""
