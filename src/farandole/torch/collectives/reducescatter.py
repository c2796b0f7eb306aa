"""reducescatter: every rank gets its rows of the reduction of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from farandole.core.dtype import Adasum, Average, Kind, Sum
from farandole.core.group import ProcessSet, global_process_set
from farandole.core.handle import Call
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.errors import InvalidRequestError
from farandole.torch.collectives.allgather import allgather, grouped_allgather
from farandole.torch.collectives.call import (
    Member,
    call_of_one,
    call_of_several,
    check_one_device,
    later,
    member_names,
    native_dtype_to_reduce,
    now,
    tracked,
)
from farandole.torch.compression import Compression
from farandole.torch.staging import from_host, host_like, to_host


def own_rows(rows: int, size: int, rank: int) -> int:
    """Return how many of `rows` rows a rank gets; the first ranks get one more where it does not come out even.

    Example:
        >>> [own_rows(5, 3, rank) for rank in range(3)]
        [2, 2, 1]
    """
    return rows // size + (rank < rows % size)


def _member(
    tensor: torch.Tensor,
    name: str,
    group: int,
    op: int,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
) -> Member:
    """Reduce a tensor; the result is a new one with this rank's rows."""
    dtype = native_dtype_to_reduce(tensor, op)
    if tensor.dim() == 0:
        raise InvalidRequestError(
            f"{name}: Reducescatter does not support scalar inputs: there is no first dimension to scatter along. Pass "
            "tensor.reshape(1), or use allreduce."
        )
    if op == Adasum:
        raise InvalidRequestError(
            "Reducescatter currently only supports AVERAGE and SUM, and here also MIN, MAX and PRODUCT, but not "
            "ADASUM, which needs whole tensors. Use allreduce(op=hvd.Adasum)."
        )
    host, event = to_host(tensor)
    # A rank that is not a member gets its error from the engine.
    rank = process_set.rank() if process_set.included() else 0
    shape = (own_rows(tensor.shape[0], len(process_set.ranks), rank), *tensor.shape[1:])
    target = host_like(tensor, shape)
    request = make_request(
        Kind.REDUCESCATTER,
        name,
        dtype=dtype,
        op=op,
        group=group,
        shape=tensor.shape,
        prescale=prescale,
        postscale=postscale,
        input=host.data_ptr(),
        output=target.data_ptr(),
    )
    device = tensor.device

    def finish(_: int, inputs: torch.Tensor = host) -> torch.Tensor:
        # `inputs` is only held: the engine reads it until now.
        result = target if device.type == "cpu" else torch.empty_like(target, device=device)
        from_host(target, result)
        return result

    return request, event, finish


def _call_of_one(session: Session, group: int, name: str, tensor: torch.Tensor, *how: Any) -> Call:
    return call_of_one(session, _member(tensor, name, group, *how))


def _call_of_several(session: Session, group: int, name: str, tensors: Sequence[torch.Tensor], *how: Any) -> Call:
    check_one_device(tensors)
    names = member_names(name, len(tensors))
    members = [_member(tensor, name, group, *how) for name, tensor in zip(names, tensors, strict=True)]
    return call_of_several(session, members)


# --- one tensor ----------------------------------------------------------------------------------------------


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce a tensor over all ranks of a process set, and return this rank's rows of the result.

    The first dimension is divided among the ranks, in rank order; where it does not come out even, the first ranks get
    one row more.

    Differentiable for Average and Sum: the gradient is all ranks' gradients, gathered; for Sum times the number of
    ranks, as in Horovod.

    Args:
        tensor: contiguous, of the same shape and type on all ranks, with at least one dimension.
        name: ranks' calls match by name; unnamed calls match by their order.
        compression: how the tensor travels, such as `Compression.bf16`.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: which ranks take part.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' tensors do not fit together, or a worker was lost.
    """
    compressed, context = compression.compress(tensor)
    how = op, process_set, prescale_factor, postscale_factor
    if tracked(compressed):
        (reduced,) = _Reducescatter.apply("reducescatter", name, *how, compressed)
    else:
        reduced = now("reducescatter", name, process_set, _call_of_one, compressed, *how)
    return compression.decompress(reduced, context)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin a `reducescatter` and return a handle for `synchronize`. Not differentiable."""
    how = op, process_set, prescale_factor, postscale_factor
    return later("reducescatter", name, process_set, _call_of_one, tensor, *how)


# --- several tensors -----------------------------------------------------------------------------------------


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduce and scatter several tensors together. See `reducescatter`."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    compressed = [tensor for tensor, _ in pairs]
    how = op, process_set, prescale_factor, postscale_factor
    if any(map(tracked, compressed)):
        reduced = _Reducescatter.apply("grouped_reducescatter", name, *how, *compressed)
    else:
        reduced = now("grouped_reducescatter", name, process_set, _call_of_several, compressed, *how)
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, pairs, strict=True)]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin a `grouped_reducescatter` and return one handle for all. Not differentiable."""
    how = op, process_set, prescale_factor, postscale_factor
    return later("grouped_reducescatter", name, process_set, _call_of_several, tensors, *how)


class _Reducescatter(torch.autograd.Function):
    """A reduction of one tensor or of several, scattered. Gradient: see `reducescatter`."""

    @staticmethod
    def forward(
        ctx: Any,
        operation: str,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale: float,
        postscale: float,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.how = op, process_set, prescale * postscale
        how = op, process_set, prescale, postscale
        if operation == "reducescatter":
            return (now(operation, name, process_set, _call_of_one, tensors[0], *how),)
        return now(operation, name, process_set, _call_of_several, tensors, *how)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        op, process_set, factor = ctx.how
        if op not in (Average, Sum):
            raise InvalidRequestError(
                "reducescatter has a gradient for Average and Sum only. Use allreduce, which has one for Min, Max and "
                "Product too, and take this rank's rows."
            )
        contiguous = [gradient.contiguous() for gradient in gradients]
        if len(contiguous) == 1:
            gathered = [allgather(contiguous[0], process_set=process_set)]
        else:
            gathered = grouped_allgather(contiguous, process_set=process_set)
        if op == Sum:
            factor = factor * len(process_set.ranks)
        results = gathered if factor == 1.0 else [gradient * factor for gradient in gathered]
        return (None, None, None, None, None, None, *results)
