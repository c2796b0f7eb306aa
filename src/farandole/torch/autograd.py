"""The collectives that gradients can flow through.

The gradient of a collective is a collective again, which runs in the backward pass on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from farandole.core.dtype import Average
from farandole.core.group import ProcessSet, global_process_set
from farandole.torch import collectives
from farandole.torch.collectives import reduction
from farandole.torch.compression import Compression


class _Allreduce(torch.autograd.Function):
    """Gradient: the same reduction of the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        ctx.how = op, prescale, postscale, process_set
        return collectives.allreduce_now(tensor, name, op, prescale, postscale, process_set)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        op, prescale, postscale, process_set = ctx.how
        reduced = allreduce(
            gradient.contiguous(),
            op=op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set=process_set,
        )
        return reduced, None, None, None, None, None


class _GroupedAllreduce(torch.autograd.Function):
    """Gradient: the same reduction of the gradients, grouped."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.how = op, prescale, postscale, process_set
        return tuple(collectives.grouped_allreduce_now(tensors, name, op, prescale, postscale, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        op, prescale, postscale, process_set = ctx.how
        reduced = grouped_allreduce(
            [gradient.contiguous() for gradient in gradients],
            op=op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set=process_set,
        )
        return (None, None, None, None, None, *reduced)


class _Allgather(torch.autograd.Function):
    """Gradient: the average of the gradients, of which each rank takes the rows it gave."""

    @staticmethod
    def forward(
        ctx: Any, operation: str, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        gathered = collectives.allgather_now(tensors, operation, name, process_set)
        ctx.process_set = process_set
        ctx.rows = [rows for _, rows in gathered]
        return tuple(output for output, _ in gathered)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        contiguous = [gradient.contiguous() for gradient in gradients]
        averaged = grouped_allreduce(contiguous, op=Average, process_set=ctx.process_set)
        rank = ctx.process_set.rank()
        own = [average.split(rows)[rank] for average, rows in zip(averaged, ctx.rows, strict=True)]
        return (None, None, None, *own)


class _Broadcast(torch.autograd.Function):
    """Gradient: the average of the gradients on the root, zero elsewhere."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.how = root_rank, process_set
        return collectives.broadcast_now(tensor, root_rank, name, process_set)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        root_rank, process_set = ctx.how
        averaged = allreduce(gradient.contiguous(), op=Average, process_set=process_set)
        is_root = process_set.ranks[process_set.rank()] == root_rank
        return (averaged if is_root else torch.zeros_like(averaged)), None, None, None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over all ranks of a process set and return the result, the same on all of them.

    Differentiable: the gradient is the same reduction of the gradients.

    Args:
        tensor: contiguous, of the same shape and type on all ranks.
        average: Horovod's older way to choose between Average and Sum.
        name: ranks' calls match by name; unnamed calls match by their order.
        compression: how the tensor travels, such as `Compression.bf16`.
        op: Average (the default), Sum, Min, Max or Product. The average of integers is truncated toward zero.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.
        process_set: which ranks take part.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' tensors do not fit together, or a worker was lost.

    Example:
        >>> hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)  # doctest: +SKIP
        tensor([3.])
    """
    op = reduction(op, average)
    compressed, context = compression.compress(tensor)
    if _tracked(compressed):
        reduced = _Allreduce.apply(compressed, name, op, prescale_factor, postscale_factor, process_set)
    else:
        reduced = collectives.allreduce_now(compressed, name, op, prescale_factor, postscale_factor, process_set)
    return compression.decompress(reduced, context)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors together; they may differ in shape and type. See `allreduce`."""
    op = reduction(op, average)
    pairs = [compression.compress(tensor) for tensor in tensors]
    compressed = [tensor for tensor, _ in pairs]
    if any(map(_tracked, compressed)):
        reduced = _GroupedAllreduce.apply(name, op, prescale_factor, postscale_factor, process_set, *compressed)
    else:
        reduced = collectives.grouped_allreduce_now(
            compressed, name, op, prescale_factor, postscale_factor, process_set
        )
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, pairs, strict=True)]


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate the tensors of all ranks of a process set along the first dimension, in rank order.

    Differentiable: the gradient is the average of the gradients, of which each rank takes the rows it gave.

    Args:
        tensor: contiguous; ranks may differ in the first dimension only, which may be 0.
        name: ranks' calls match by name; unnamed calls match by their order.
        process_set: which ranks take part.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' tensors do not fit together, or a worker was lost.
    """
    (output,) = _gather((tensor,), "allgather", name, process_set)
    return output


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Gather several tensors together. See `allgather`."""
    return list(_gather(tensors, "grouped_allgather", name, process_set))


def _gather(
    tensors: Sequence[torch.Tensor], operation: str, name: str | None, process_set: ProcessSet
) -> Sequence[torch.Tensor]:
    if any(map(_tracked, tensors)):
        return _Allgather.apply(operation, name, process_set, *tensors)
    return [output for output, _ in collectives.allgather_now(tensors, operation, name, process_set)]


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return the root's tensor on every rank of a process set.

    Differentiable: the gradient is the average of the gradients on the root, and zero elsewhere.

    Args:
        tensor: contiguous, of the same shape and type on all ranks.
        root_rank: whose tensor; a rank in the world, also for a process set.
        name: ranks' calls match by name; unnamed calls match by their order.
        process_set: which ranks take part.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' tensors do not fit together, or a worker was lost.
    """
    if _tracked(tensor):
        return _Broadcast.apply(tensor, root_rank, name, process_set)
    return collectives.broadcast_now(tensor, root_rank, name, process_set)


def _tracked(tensor: torch.Tensor) -> bool:
    # Going through autograd costs more than a small collective does.
    return tensor.requires_grad and torch.is_grad_enabled()
