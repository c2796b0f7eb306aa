"""What all collectives have in common: from a tensor to a call in flight, and from there to its result.

A *member* is one tensor's part of a call: its native request, the event after which its input is ready, and what makes
its result once the request is done. Each collective says how to make a member; here members become a call, which its
user waits for at once (`now`) or by its number (`later`). The members of a call are submitted all or none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from farandole.core.basics import current
from farandole.core.binding import NativeRequest
from farandole.core.dtype import Average, DType
from farandole.core.errors import HorovodInternalError, InvalidRequestError
from farandole.core.group import ProcessSet
from farandole.core.handle import Call, Pending
from farandole.core.session import Session
from farandole.torch.staging import submit
from farandole.torch.uncompiled import uncompiled

DTYPES = {
    torch.uint8: DType.U8,
    torch.int8: DType.I8,
    torch.int16: DType.I16,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float32: DType.F32,
    torch.float64: DType.F64,
    torch.bool: DType.BOOL,
}

# Plain tuples: they are on the way of every small tensor.
Member = tuple[NativeRequest, "torch.cuda.Event | None", Callable[[int], Any]]
Begun = tuple[Session, Call]


# --- beginning -----------------------------------------------------------------------------------------------


@uncompiled
def begin(
    operation: str, name: str | None, process_set: ProcessSet, make: Callable[[Session, int, str], Member]
) -> Begun:
    """Begin a call on one tensor, whose result is its member's.

    Args:
        operation: begins the name by which ranks' calls match, and counts the unnamed ones.
        name: the user's.
        process_set: which ranks take part.
        make: from (session, group, full name) to the member.
    """
    session = current()
    group = session.group_of(process_set, operation)
    full_name = _full_name(session, operation, name, group)
    try:
        request, event, finish = make(session, group, full_name)
        return session, submit(session, (request,), (event,), lambda handles: finish(handles[0]))
    except Exception:
        _give_back(session, operation, name, group)
        raise


@uncompiled
def begin_grouped(
    operation: str,
    name: str | None,
    process_set: ProcessSet,
    tensors: Sequence[torch.Tensor],
    make: Callable[[Session, int, str, torch.Tensor], Member],
) -> Begun:
    """Begin a call on several tensors, whose result is the tuple of its members' results.

    Args:
        operation: as for `begin`.
        name: the user's; the members are called `<name>_1of3` and so on.
        process_set: which ranks take part.
        tensors: one for each member.
        make: from (session, group, full name, tensor) to a member.

    Raises:
        HorovodInternalError: the tensors lie on different devices.
    """
    session = current()
    group = session.group_of(process_set, operation)
    _check_one_device(tensors)
    full_name = _full_name(session, operation, name, group)
    try:
        members = [
            make(session, group, f"{full_name}_{number}of{len(tensors)}", tensor)
            for number, tensor in enumerate(tensors, 1)
        ]
        return session, submit_members(session, members)
    except Exception:
        _give_back(session, operation, name, group)
        raise


@uncompiled
def submit_members(session: Session, members: Sequence[Member]) -> Call:
    """Submit members together, as soon as all of their inputs are ready. The result is the tuple of their results."""
    if not members:
        return Pending(session.engine, (), lambda _: ())
    requests, events, finishes = zip(*members, strict=True)

    def finish(handles: Sequence[int]) -> tuple[Any, ...]:
        return tuple(finish_one(handle) for finish_one, handle in zip(finishes, handles, strict=True))

    return submit(session, requests, events, finish)


def _full_name(session: Session, operation: str, name: str | None, group: int) -> str:
    return f"{operation}.{session.names.next(operation, group) if name is None else name}"


def _give_back(session: Session, operation: str, name: str | None, group: int) -> None:
    """Let the number of an unnamed call be used again: the call was refused, so the other ranks do not count it."""
    if name is None:
        session.names.give_back(operation, group)


# --- waiting -------------------------------------------------------------------------------------------------


@uncompiled
def now(begun: Begun) -> Any:
    """Wait for a call and return its result."""
    session, call = begun
    return session.handles.wait(call)


def later(begun: Begun) -> int:
    """Keep a call in the session's table and return its number."""
    session, call = begun
    return session.handles.add(call)


def poll(handle: int) -> bool:
    """Say whether an asynchronous call is done, so that `synchronize` would not wait.

    Raises:
        ValueError: there is no such handle, or it was synchronized before.
    """
    return current().handles.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous call and return its output; None if the handle is unknown or was synchronized before.

    Raises:
        HorovodInternalError: the call failed, on all ranks.
    """
    return current().handles.synchronize(handle)


# --- tensors -------------------------------------------------------------------------------------------------


def native_dtype(tensor: torch.Tensor) -> DType:
    """Return the tensor's element type for the engine.

    Raises:
        ValueError: the tensor cannot be sent as it is.
    """
    if tensor.layout != torch.strided or tensor.dtype not in DTYPES:
        raise InvalidRequestError(f"Tensor type {tensor.type()} is not supported.")
    if not tensor.is_contiguous():
        raise InvalidRequestError("Tensor is required to be contiguous. Pass tensor.contiguous().")
    return DTYPES[tensor.dtype]


def native_dtype_to_reduce(tensor: torch.Tensor, op: int) -> DType:
    """Return the tensor's element type for the engine, as `native_dtype` does, for a reduction.

    Raises:
        ValueError: the tensor cannot be sent as it is, or has no such reduction.
    """
    dtype = native_dtype(tensor)
    if dtype is DType.BOOL and op == Average:
        raise InvalidRequestError(
            f"Tensor type {tensor.type()} is not supported with op=hvd.Average. Use "
            'hvd.Sum or hvd.Max ("or"), or hvd.Min or hvd.Product ("and").'
        )
    return dtype


def note_write(tensor: torch.Tensor) -> None:
    """Tell autograd that the engine has written a tensor behind its back, so that it refuses stale saved values."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def tracked(tensor: torch.Tensor) -> bool:
    """Say whether gradients are to flow through this tensor. Going through autograd costs more than a small call."""
    return tensor.requires_grad and torch.is_grad_enabled()


def _check_one_device(tensors: Sequence[torch.Tensor]) -> None:
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise HorovodInternalError(
            f"Tensors in list must be on same device, but these are on {', '.join(sorted(map(str, devices)))}. "
            "Call once for each device."
        )
