"""What all collectives have in common: from tensors to a call, and from there to its result.

A *member* is one tensor's part of a call: its native request, the event after which its input is ready, and what makes
its result once the request is done. Each collective says how to make a member; here members become a call, whose
requests are submitted all or none, and a call is waited for at once (`now`) or by its number (`later`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from farandole.core.basics import current
from farandole.core.binding import NativeRequest
from farandole.core.dtype import Average, DType
from farandole.core.group import ProcessSet
from farandole.core.handle import Call, HandleTable, Known
from farandole.core.session import Session
from farandole.errors import HorovodInternalError, InvalidRequestError
from farandole.torch.no_compile import no_compile
from farandole.torch.staging import call_of

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

_STRIDED = torch.strided
_increment_version = torch.autograd.graph.increment_version

# Plain tuples: they are on the way of every small tensor.
Member = tuple[NativeRequest, "torch.cuda.Event | None", Callable[[int], Any]]


# --- from members to a call ----------------------------------------------------------------------------------


def call_of_one(session: Session, member: Member) -> Call:
    """Return a call of one member, whose result is the member's."""
    request, event, finish = member
    return call_of(session, (request,), (event,), lambda handles: finish(handles[0]))


def call_of_several(session: Session, members: Sequence[Member]) -> Call:
    """Return a call of several members, whose result is the tuple of theirs."""
    if not members:
        return Known(())
    requests, events, finishes = zip(*members, strict=True)

    def finish(handles: Iterable[int]) -> tuple[Any, ...]:
        return tuple(finish_one(handle) for finish_one, handle in zip(finishes, handles, strict=True))

    return call_of(session, requests, events, finish)


def member_names(name: str, count: int) -> list[str]:
    """Return the full names of the members of a grouped call: `<name>_1of3` and so on."""
    return [f"{name}_{number}of{count}" for number in range(1, count + 1)]


# --- from a call to its result -------------------------------------------------------------------------------


@no_compile
def now(operation: str, name: str | None, process_set: ProcessSet, make: Callable[..., Call], *details: Any) -> Any:
    """Make a call, wait for it and return its result. See `Session.carry_out`."""
    return current().carry_out(HandleTable.run, operation, name, process_set, make, *details)


@no_compile
def now_in_place(
    written: Sequence[torch.Tensor],
    operation: str,
    name: str | None,
    process_set: ProcessSet,
    make: Callable[..., Call],
    *details: Any,
) -> Any:
    """Do what `now` does for a call that writes over its inputs: as it may be made again, they are kept until then."""
    session = current()
    again = session.retry
    if again is None or process_set.process_set_id != 0:
        return session.carry_out(HandleTable.run, operation, name, process_set, make, *details)
    kept = [tensor.detach().clone() for tensor in written]

    def put(values: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for tensor, value in zip(written, values, strict=True):
                tensor.copy_(value)

    def adopt(result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            put([result])
            return written[0]
        put(result)
        return list(written)

    def once() -> Any:
        return session.carry_out_once(HandleTable.run, operation, name, process_set, make, *details)

    return again.run(once, lambda: put(kept), adopt)


@no_compile
def later(operation: str, name: str | None, process_set: ProcessSet, make: Callable[..., Call], *details: Any) -> int:
    """Make a call, keep it in flight and return its number. See `Session.carry_out`."""
    number: int = current().carry_out(HandleTable.begin, operation, name, process_set, make, *details)
    return number


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
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None or tensor.layout is not _STRIDED:
        raise InvalidRequestError(f"Tensor type {tensor.type()} is not supported.")
    if not tensor.is_contiguous():
        raise InvalidRequestError("Tensor is required to be contiguous. Pass tensor.contiguous().")
    return dtype


def lies_ready(tensor: torch.Tensor) -> bool:
    """Say whether the engine can read and write the tensor where it is."""
    return tensor.is_cpu and tensor.layout is _STRIDED and tensor.is_contiguous()


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
        _increment_version(tensor)


def note_writes(tensors: Iterable[torch.Tensor]) -> None:
    """Do what `note_write` does for several tensors."""
    _increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def tracked(tensor: torch.Tensor) -> bool:
    """Say whether gradients are to flow through this tensor. Going through autograd costs more than a small call."""
    return tensor.requires_grad and torch.is_grad_enabled()


def check_one_device(tensors: Sequence[torch.Tensor]) -> None:
    """Raise HorovodInternalError if tensors of one call lie on different devices."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise HorovodInternalError(
            f"Tensors in list must be on same device, but these are on {', '.join(sorted(map(str, devices)))}. "
            "Call once for each device."
        )
