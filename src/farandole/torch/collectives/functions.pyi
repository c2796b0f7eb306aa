# Rendered from farandole.worker.collectives by `make fix` (tools/stubs.py). Do not edit.
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from farandole.worker.core.group import ProcessSet, global_process_set

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reduce",
    "grouped_reduce_",
    "grouped_reduce_async",
    "grouped_reduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reduce",
    "reduce_",
    "reduce_async",
    "reduce_async_",
    "reducescatter",
    "reducescatter_async",
]

def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = ...,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over all ranks of a process set and return the result, the same on all of them.

    Differentiable. The gradient of Average, Sum and Adasum is the same reduction of the gradients; of Min and Max, the
    sum of the gradients where this rank's element is the result, shared equally; of Product, the sum of the gradients
    times the product of the other ranks' elements.

    Args:
        tensor: contiguous; of the same element type on all ranks.
        average: Horovod's older way to choose between Average and Sum.
        name: ranks' calls match by name; unnamed calls match by their order.
        compression: the compression of the tensor, such as `Compression.fp16`. What `Compression.int8` and the like
            do not send is lost, unless they remember it: see `Recipe.with_feedback`.
        op: Average (the default), Sum, Adasum, Min, Max or Product. The average of integers is truncated toward zero.
            Of truth values, Sum and Max are "or", Product and Min are "and".
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.
        process_set: the ranks that take part.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' tensors do not fit together, or a worker was lost.
    """

def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin `allreduce` and return a handle for `synchronize`. Not differentiable.

    The tensor must not change until then.
    """

def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Do what `allreduce` does, in place, and return what was given."""

def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin `allreduce_` and return a handle for `synchronize`. Not differentiable."""

def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = ...,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Do what `allreduce` does for several tensors together; they may differ in shape and type."""

def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin `grouped_allreduce` and return a handle for `synchronize`. Not differentiable.

    The tensors must not change until then.
    """

def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """Do what `grouped_allreduce` does, in place, and return what was given."""

def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin `grouped_allreduce_` and return a handle for `synchronize`. Not differentiable."""

def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Concatenate the tensors of all ranks of a process set along the first dimension, in rank order.

    Ranks may differ in the first dimension only, which may be 0.

    Differentiable. The gradient is the average of the gradients, of which each rank takes the rows of its input.

    Args:
        tensor: contiguous; of the same element type on all ranks.
        name: ranks' calls match by name; unnamed calls match by their order.
        process_set: the ranks that take part.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' tensors do not fit together, or a worker was lost.
    """

def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin `allgather` and return a handle for `synchronize`. Not differentiable.

    The tensor must not change until then.
    """

def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Do what `allgather` does for several tensors together; they may differ in shape and type."""

def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin `grouped_allgather` and return a handle for `synchronize`. Not differentiable.

    The tensors must not change until then.
    """

def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return the root's tensor on every rank of a process set.

    Differentiable. The gradient is the average of the gradients on the root, and zero elsewhere.

    Args:
        tensor: contiguous; of the same element type on all ranks.
        root_rank: the rank whose tensor is sent; a rank in the world, also for a process set.
        name: ranks' calls match by name; unnamed calls match by their order.
        process_set: the ranks that take part.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' tensors do not fit together, or a worker was lost.
    """

def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin `broadcast` and return a handle for `synchronize`. Not differentiable.

    The tensor must not change until then.
    """

def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Do what `broadcast` does, in place, and return what was given."""

def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin `broadcast_` and return a handle for `synchronize`. Not differentiable."""

def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Iterable[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of the tensor to every rank of a process set, and return those that all ranks sent to this one.

    Ranks may differ in the first dimension only.

    Differentiable. Gradients are sent back to the ranks that sent the rows; rows that were not sent have zero.

    Args:
        tensor: contiguous; of the same element type on all ranks.
        splits: the number of rows for each rank, in rank order; rows that are left over are not sent. A 1-D tensor of
            int32 or a list. None gives equally many to each, which the first dimension must allow.
        name: ranks' calls match by name; unnamed calls match by their order.
        process_set: the ranks that take part.

    Returns:
        Without splits, the rows received, in rank order. With splits, a pair of these and `received_splits`: the number
        of rows from each rank, int32 (int64 if a number does not fit), on the device of `splits`.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' tensors do not fit together, or a worker was lost.
    """

def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Iterable[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin `alltoall` and return a handle for `synchronize`. Not differentiable.

    The tensor must not change until then.
    """

def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = ...,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce a tensor over all ranks of a process set, and return this rank's rows of the result.

    The first dimension is divided among the ranks, in rank order; if it cannot be divided equally, the first ranks get
    one row more.

    Differentiable. There is a gradient for Average and Sum: all ranks' gradients, gathered; for Sum times the number of
    ranks, as in Horovod.

    Args:
        tensor: contiguous; of the same element type on all ranks.
        name: ranks' calls match by name; unnamed calls match by their order.
        compression: the compression of the tensor, such as `Compression.fp16`.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: the ranks that take part.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' tensors do not fit together, or a worker was lost.
    """

def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin `reducescatter` and return a handle for `synchronize`. Not differentiable.

    The tensor must not change until then.
    """

def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = ...,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Do what `reducescatter` does for several tensors together; they may differ in shape and type."""

def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin `grouped_reducescatter` and return a handle for `synchronize`. Not differentiable.

    The tensors must not change until then.
    """

def reduce(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce a tensor over all ranks of a process set, and return the result on the root.

    Other ranks return their input.

    Differentiable. There is a gradient for Average and Sum: that of the root's result, on every rank. The results of
    other ranks do not contribute.

    Args:
        tensor: contiguous; of the same element type on all ranks.
        root_rank: the rank that gets the result; a rank in the world, also for a process set.
        name: ranks' calls match by name; unnamed calls match by their order.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: the ranks that take part.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' tensors do not fit together, or a worker was lost.
    """

def reduce_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin `reduce` and return a handle for `synchronize`. Not differentiable.

    The tensor must not change until then.
    """

def reduce_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Do what `reduce` does, in place, and return what was given."""

def reduce_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin `reduce_` and return a handle for `synchronize`. Not differentiable."""

def grouped_reduce(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Do what `reduce` does for several tensors together; they may differ in shape and type."""

def grouped_reduce_async(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin `grouped_reduce` and return a handle for `synchronize`. Not differentiable.

    The tensors must not change until then.
    """

def grouped_reduce_(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tuple[torch.Tensor, ...]:
    """Do what `grouped_reduce` does, in place, and return what was given."""

def grouped_reduce_async_(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None = None,
    op: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin `grouped_reduce_` and return a handle for `synchronize`. Not differentiable."""
