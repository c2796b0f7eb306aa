"""allgather: every rank gets the rows of all ranks, in rank order."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from farandole.core.dtype import Average, Kind
from farandole.core.errors import InvalidRequestError
from farandole.core.group import ProcessSet, global_process_set
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.torch.collectives.allreduce import grouped_allreduce
from farandole.torch.collectives.call import Begun, Member, begin, begin_grouped, later, native_dtype, now, tracked
from farandole.torch.staging import from_host, host_like, to_host

# A tensor, and how many of its rows came from each rank.
Gathered = tuple[torch.Tensor, tuple[int, ...]]


def gather_member(session: Session, group: int, name: str, tensor: torch.Tensor) -> Member:
    """Gather a tensor. The result is a `Gathered`."""
    dtype = native_dtype(tensor)
    if tensor.dim() == 0:
        raise InvalidRequestError(
            f"{name}: a tensor without dimensions (a rank-zero tensor) cannot be gathered, which joins along the first "
            "one. Pass tensor.reshape(1)."
        )
    host, event = to_host(tensor)
    request = make_request(Kind.ALLGATHER, name, dtype=dtype, group=group, shape=tensor.shape, input=host.data_ptr())

    def finish(handle: int, _: torch.Tensor = host) -> Gathered:
        # `host` is held: the engine reads it until now.
        return received(session, handle, tensor)

    return request, event, finish


def received(session: Session, handle: int, like: torch.Tensor) -> Gathered:
    """Copy what a request has received out of the engine's memory.

    Args:
        session: whose.
        handle: a request that is done, whose result is rows like those of `like`.
        like: gives type, device and the shape of a row.
    """
    address, rows = session.engine.result(handle)
    host = host_like(like, (sum(rows), *like.shape[1:]))
    if host.numel():
        ctypes.memmove(host.data_ptr(), address, host.numel() * host.element_size())
    output = host if like.device.type == "cpu" else torch.empty_like(host, device=like.device)
    from_host(host, output)
    return output, rows


# --- one tensor ----------------------------------------------------------------------------------------------


def begin_gather(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Begun:
    """Begin an allgather whose result is a `Gathered`."""

    def make(session: Session, group: int, full_name: str) -> Member:
        return gather_member(session, group, full_name, tensor)

    return begin("allgather", name, process_set, make)


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
    if tracked(tensor):
        (output,) = _Allgather.apply("allgather", name, process_set, tensor)
    else:
        output, _ = now(begin_gather(tensor, name, process_set))
    return output


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Begin an `allgather` and return a handle for `synchronize`. Not differentiable."""

    def make(session: Session, group: int, full_name: str) -> Member:
        return _output_only(gather_member(session, group, full_name, tensor))

    return later(begin("allgather", name, process_set, make))


# --- several tensors -----------------------------------------------------------------------------------------


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Gather several tensors together. See `allgather`."""
    if any(map(tracked, tensors)):
        return list(_Allgather.apply("grouped_allgather", name, process_set, *tensors))
    gathered = now(begin_grouped("grouped_allgather", name, process_set, tensors, gather_member))
    return [output for output, _ in gathered]


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin a `grouped_allgather` and return one handle for all. Not differentiable."""

    def make(session: Session, group: int, full_name: str, tensor: torch.Tensor) -> Member:
        return _output_only(gather_member(session, group, full_name, tensor))

    return later(begin_grouped("grouped_allgather", name, process_set, tensors, make))


def _output_only(member: Member) -> Member:
    """Return a gathering member whose result is the tensor without the rows of each rank."""
    request, event, finish = member
    return request, event, lambda handle: finish(handle)[0]


class _Allgather(torch.autograd.Function):
    """Gradient: the average of the gradients, of which each rank takes the rows it gave."""

    @staticmethod
    def forward(
        ctx: Any, operation: str, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        if operation == "allgather":
            gathered = (now(begin_gather(tensors[0], name, process_set)),)
        else:
            gathered = now(begin_grouped(operation, name, process_set, tensors, gather_member))
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
