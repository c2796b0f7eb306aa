"""The collectives on tensors, without autograd: plain, in place, grouped, and each of them asynchronous.

Every public function first makes a `Call` (check, stage, submit); the synchronous ones wait for it, the asynchronous
ones put it into the session's table and return its number.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from farandole.core.basics import current
from farandole.core.dtype import Average, DType, Kind, Sum
from farandole.core.errors import InvalidRequestError
from farandole.core.group import ProcessSet, global_process_set
from farandole.core.handle import Call
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.torch.staging import from_host, host_like, submit, to_host

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


# --- calls ---------------------------------------------------------------------------------------------------


def allreduce_call(
    session: Session,
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    names: Sequence[str],
    op: int,
    prescale: float,
    postscale: float,
    group: int,
) -> Call:
    """Reduce each tensor over the group into its output. The result is the outputs."""
    requests, events, hosts = [], [], []
    for tensor, output, name in zip(tensors, outputs, names, strict=True):
        dtype = native_dtype(tensor)
        host, event = to_host(tensor)
        # A staged tensor is reduced where it was staged; a CPU tensor goes straight to its output.
        target = output if host is tensor else host
        hosts.append(target)
        events.append(event)
        requests.append(
            make_request(
                Kind.ALLREDUCE,
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
        )

    def finish(_: Sequence[int], inputs: Any = tensors) -> list[torch.Tensor]:
        # `inputs` is only held: the engine reads them until now.
        for host, output in zip(hosts, outputs, strict=True):
            from_host(host, output)
        _note_writes(inputs, outputs)
        return list(outputs)

    return submit(session, requests, events, finish)


def allgather_call(session: Session, tensors: Sequence[torch.Tensor], names: Sequence[str], group: int) -> Call:
    """Concatenate each tensor over the group. The result is a list of (output, rows of each rank)."""
    requests, events, hosts = [], [], []
    for tensor, name in zip(tensors, names, strict=True):
        dtype = native_dtype(tensor)
        if tensor.dim() == 0:
            raise InvalidRequestError(
                f"{name}: a tensor without dimensions cannot be gathered, which joins along the first one. "
                "Pass tensor.reshape(1)."
            )
        host, event = to_host(tensor)
        hosts.append(host)
        events.append(event)
        requests.append(
            make_request(Kind.ALLGATHER, name, dtype=dtype, group=group, shape=tensor.shape, input=host.data_ptr())
        )

    def finish(handles: Sequence[int], inputs: Any = hosts) -> list[tuple[torch.Tensor, tuple[int, ...]]]:
        # `inputs` is only held: the engine reads them until now.
        return [_gathered(session, handle, tensor) for handle, tensor in zip(handles, tensors, strict=True)]

    return submit(session, requests, events, finish)


def _gathered(session: Session, handle: int, like: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    address, rows = session.engine.result(handle)
    host = host_like(like, (sum(rows), *like.shape[1:]))
    if host.numel():
        ctypes.memmove(host.data_ptr(), address, host.numel() * host.element_size())
    output = host if like.device.type == "cpu" else torch.empty_like(host, device=like.device)
    from_host(host, output)
    return output, rows


def broadcast_call(
    session: Session, tensor: torch.Tensor, output: torch.Tensor, root_rank: int, name: str, group: int
) -> Call:
    """Give every rank of the group the root's tensor, in its output. The result is the output."""
    dtype = native_dtype(tensor)
    host, event = to_host(tensor)
    target = output if host is tensor else host
    request = make_request(
        Kind.BROADCAST,
        name,
        dtype=dtype,
        group=group,
        root=root_rank,
        shape=tensor.shape,
        input=host.data_ptr(),
        output=target.data_ptr(),
    )

    def finish(_: Sequence[int]) -> torch.Tensor:
        from_host(target, output)
        _note_writes((tensor,), (output,))
        return output

    return submit(session, (request,), (event,), finish)


def native_dtype(tensor: torch.Tensor) -> DType:
    """Return the tensor's element type for the engine.

    Raises:
        ValueError: the tensor cannot be sent as it is.
    """
    if tensor.layout != torch.strided or tensor.dtype not in DTYPES:
        raise InvalidRequestError(f"Tensor type {tensor.type()} is not supported.")
    if not tensor.is_contiguous():
        raise InvalidRequestError("Tensor is required to be contiguous.")
    return DTYPES[tensor.dtype]


def _note_writes(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Tell autograd of tensors that the engine wrote behind its back, so that it refuses stale saved values."""
    for tensor, output in zip(inputs, outputs, strict=True):
        if tensor is output and not output.is_inference():
            torch.autograd.graph.increment_version(output)


def _named(session: Session, operation: str, name: str | None, group: int, begin: Callable[[str], Call]) -> Call:
    """Begin a call under the name by which it matches those of the other ranks."""
    if name is not None:
        return begin(f"{operation}.{name}")
    try:
        return begin(f"{operation}.{session.names.next(operation, group)}")
    except InvalidRequestError:
        session.names.give_back(operation, group)
        raise


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name}_{number}of{count}" for number in range(1, count + 1)]


def reduction(op: int | None, average: bool | None) -> int:
    """Return the operation that `op` and Horovod's older `average` ask for together."""
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise InvalidRequestError("The op parameter supersedes average. Please provide only one of them.")
    warnings.warn("average is deprecated: use op=hvd.Average or op=hvd.Sum.", DeprecationWarning, stacklevel=4)
    return Average if average else Sum


# --- waiting -------------------------------------------------------------------------------------------------


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


# --- allreduce -----------------------------------------------------------------------------------------------


def _allreduce(
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> tuple[Session, Call]:
    how = reduction(op, average)
    session = current()
    group = session.group_of(process_set, "Allreduce")
    outputs = (torch.empty_like(tensor, requires_grad=False) if output is None else output,)

    def begin(full_name: str) -> Call:
        names = (full_name,)
        return allreduce_call(session, (tensor,), outputs, names, how, prescale_factor, postscale_factor, group)

    return session, _Only(_named(session, "allreduce", name, group, begin))


def _grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor] | None,
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> tuple[Session, Call]:
    how = reduction(op, average)
    session = current()
    group = session.group_of(process_set, "Allreduce")
    if outputs is None:
        outputs = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]

    def begin(full_name: str) -> Call:
        names = _numbered(full_name, len(tensors))
        return allreduce_call(session, tensors, outputs, names, how, prescale_factor, postscale_factor, group)

    return session, _named(session, "grouped_allreduce", name, group, begin)


class _Only:
    """A call whose result is the only element of another's."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def done(self) -> bool:
        return self._call.done()

    def result(self) -> Any:
        (only,) = self._call.result()
        return only


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an `allreduce` and return a handle for `synchronize`. Not differentiable.

    The tensor must not change until then.
    """
    session, call = _allreduce(tensor, None, average, name, op, prescale_factor, postscale_factor, process_set)
    return session.handles.add(call)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over all ranks of a process set, in place, and return it. See `allreduce`."""
    session, call = _allreduce(tensor, tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    return session.handles.wait(call)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an `allreduce_` and return a handle for `synchronize`."""
    session, call = _allreduce(tensor, tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    return session.handles.add(call)


def allreduce_now(
    tensor: torch.Tensor,
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> torch.Tensor:
    """Do an `allreduce` without autograd and without compression."""
    session, call = _allreduce(tensor, None, None, name, op, prescale_factor, postscale_factor, process_set)
    return session.handles.wait(call)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin a `grouped_allreduce` and return one handle for all. Not differentiable."""
    session, call = _grouped_allreduce(tensors, None, average, name, op, prescale_factor, postscale_factor, process_set)
    return session.handles.add(call)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors together, in place, and return them. See `grouped_allreduce`."""
    session, call = _grouped_allreduce(
        tensors, tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    return session.handles.wait(call)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin a `grouped_allreduce_` and return one handle for all."""
    session, call = _grouped_allreduce(
        tensors, tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    return session.handles.add(call)


def grouped_allreduce_now(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    """Do a `grouped_allreduce` without autograd and without compression."""
    session, call = _grouped_allreduce(tensors, None, None, name, op, prescale_factor, postscale_factor, process_set)
    return session.handles.wait(call)


# --- allgather -----------------------------------------------------------------------------------------------


def _allgather(
    tensors: Sequence[torch.Tensor], operation: str, name: str | None, process_set: ProcessSet
) -> tuple[Session, Call]:
    session = current()
    group = session.group_of(process_set, "Allgather")

    def begin(full_name: str) -> Call:
        names = [full_name] if operation == "allgather" else _numbered(full_name, len(tensors))
        return allgather_call(session, tensors, names, group)

    return session, _named(session, operation, name, group, begin)


class _Outputs:
    """An allgather whose result is the outputs alone, without the rows of each rank."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def done(self) -> bool:
        return self._call.done()

    def result(self) -> list[torch.Tensor]:
        return [output for output, _ in self._call.result()]


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Begin an `allgather` and return a handle for `synchronize`. Not differentiable."""
    session, call = _allgather((tensor,), "allgather", name, process_set)
    return session.handles.add(_Only(_Outputs(call)))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin a `grouped_allgather` and return one handle for all. Not differentiable."""
    session, call = _allgather(tensors, "grouped_allgather", name, process_set)
    return session.handles.add(_Outputs(call))


def allgather_now(
    tensors: Sequence[torch.Tensor], operation: str, name: str | None, process_set: ProcessSet
) -> list[tuple[torch.Tensor, tuple[int, ...]]]:
    """Gather without autograd; return each output with the rows that came from each rank."""
    session, call = _allgather(tensors, operation, name, process_set)
    return session.handles.wait(call)


# --- broadcast and barrier -----------------------------------------------------------------------------------


def _broadcast(
    tensor: torch.Tensor, output: torch.Tensor | None, root_rank: int, name: str | None, process_set: ProcessSet
) -> tuple[Session, Call]:
    session = current()
    group = session.group_of(process_set, "Broadcast")
    target = torch.empty_like(tensor, requires_grad=False) if output is None else output

    def begin(full_name: str) -> Call:
        return broadcast_call(session, tensor, target, root_rank, full_name, group)

    return session, _named(session, "broadcast", name, group, begin)


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin a `broadcast` and return a handle for `synchronize`. Not differentiable."""
    session, call = _broadcast(tensor, None, root_rank, name, process_set)
    return session.handles.add(call)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Give every rank the root's tensor, in place, and return it. See `broadcast`."""
    session, call = _broadcast(tensor, tensor, root_rank, name, process_set)
    return session.handles.wait(call)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin a `broadcast_` and return a handle for `synchronize`."""
    session, call = _broadcast(tensor, tensor, root_rank, name, process_set)
    return session.handles.add(call)


def broadcast_now(tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> torch.Tensor:
    """Do a `broadcast` without autograd."""
    session, call = _broadcast(tensor, None, root_rank, name, process_set)
    return session.handles.wait(call)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the process set have called this.

    Raises:
        HorovodInternalError: a worker was lost.
    """
    session = current()
    group = session.group_of(process_set, "Barrier")

    def begin(full_name: str) -> Call:
        return submit(session, (make_request(Kind.BARRIER, full_name, group=group),), (), lambda _: None)

    session.handles.wait(_named(session, "barrier", None, group, begin))
