"""allgather: every rank gets the rows of all ranks, in rank order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from farandole.core.dtype import Average, Kind
from farandole.core.group import ProcessSet, global_process_set
from farandole.core.handle import Call
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.errors import InvalidRequestError
from farandole.torch.collectives.allreduce import grouped_allreduce
from farandole.torch.collectives.call import (
    Member,
    call_of_one,
    call_of_several,
    check_one_device,
    later,
    member_names,
    native_dtype,
    now,
    tracked,
)
from farandole.torch.staging import from_host, host_like, to_host

# A tensor, and how many of its rows came from each rank.
Gathered = tuple[torch.Tensor, tuple[int, ...]]


def gather_member(
    session: Session, group: int, name: str, tensor: torch.Tensor, taken: Callable[[Gathered], Any] | None = None
) -> Member:
    """Gather a tensor. The result is a `Gathered`, or what `taken` takes of it."""
    dtype = native_dtype(tensor)
    if tensor.dim() == 0:
        raise InvalidRequestError(
            f"{name}: a tensor without dimensions (a rank-zero tensor) cannot be gathered, which joins along the first "
            "one. Pass tensor.reshape(1)."
        )
    host, event = to_host(tensor)
    request = make_request(Kind.ALLGATHER, name, dtype=dtype, group=group, shape=tensor.shape, input=host.data_ptr())

    def finish(handle: int, _: torch.Tensor = host) -> Any:
        # `host` is held: the engine reads it until now.
        gathered = received(session, handle, tensor)
        return gathered if taken is None else taken(gathered)

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


def _output_only(gathered: Gathered) -> torch.Tensor:
    return gathered[0]


def _call_of_one(
    session: Session, group: int, name: str, tensor: torch.Tensor, taken: Callable[[Gathered], Any] | None = None
) -> Call:
    return call_of_one(session, gather_member(session, group, name, tensor, taken))


def _call_of_several(
    session: Session,
    group: int,
    name: str,
    tensors: Sequence[torch.Tensor],
    taken: Callable[[Gathered], Any] | None = None,
) -> Call:
    check_one_device(tensors)
    names = member_names(name, len(tensors))
    members = [gather_member(session, group, name, tensor, taken) for name, tensor in zip(names, tensors, strict=True)]
    return call_of_several(session, members)


# --- one tensor ----------------------------------------------------------------------------------------------


def gather(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Gathered:
    """Return what `allgather` does, and how many rows came from each rank."""
    gathered: Gathered = now("allgather", name, process_set, _call_of_one, tensor)
    return gathered


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
        output, _ = gather(tensor, name, process_set)
    return output


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Begin an `allgather` and return a handle for `synchronize`. Not differentiable."""
    return later("allgather", name, process_set, _call_of_one, tensor, _output_only)


# --- several tensors -----------------------------------------------------------------------------------------


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Gather several tensors together. See `allgather`."""
    if any(map(tracked, tensors)):
        return list(_Allgather.apply("grouped_allgather", name, process_set, *tensors))
    return list(now("grouped_allgather", name, process_set, _call_of_several, tensors, _output_only))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin a `grouped_allgather` and return one handle for all. Not differentiable."""
    return later("grouped_allgather", name, process_set, _call_of_several, tensors, _output_only)


class _Allgather(torch.autograd.Function):
    """Gradient: the average of the gradients, of which each rank takes the rows it gave."""

    @staticmethod
    def forward(
        ctx: Any, operation: str, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        if operation == "allgather":
            gathered: Sequence[Gathered] = (gather(tensors[0], name, process_set),)
        else:
            gathered = now(operation, name, process_set, _call_of_several, tensors)
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
