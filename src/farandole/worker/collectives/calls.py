"""Creates calls from tensors.

A *member* is one tensor's part of a call: its native request, the ready tensor that the request reads, and the function
that makes its result once the request is done. The members of a call are submitted all or none.

Calls of the same kind are repeated. If the engine can use the tensors in place, a call overwrites the submission of an
earlier one (`SubmissionPool`), because making new requests costs more than a small collective.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from farandole.base.request_kind import Rows
from farandole.worker.collectives.allreduce import ALLREDUCE
from farandole.worker.collectives.declaration import Collective, Options, Received, Tensor
from farandole.worker.collectives.front_end import FrontEnd
from farandole.worker.core.binding import NativeRequest
from farandole.worker.core.dtype import DType, ElementType, Sum
from farandole.worker.core.group import ProcessSet, global_process_set
from farandole.worker.core.handle import Call, Known, Pending
from farandole.worker.core.request import make_request
from farandole.worker.core.session import Session

# Plain tuples, because many are created.
Member = tuple[NativeRequest, Any, Callable[[int], Any]]
# A module's name is found more quickly than a class's attribute, and every small tensor comes here.
_SAME = Rows.SAME
# A function from the received rows to the user's result.
Take = Callable[[Received], Any]


# --- one tensor ------------------------------------------------------------------------------------------------


def call_of_one(
    session: Session,
    group: int,
    name: str,
    front: FrontEnd[Tensor],
    collective: Collective,
    tensor: Tensor,
    in_place: bool,
    options: Options,
    process_set: ProcessSet,
    take: Take | None = None,
) -> Call:
    """Return a call of one tensor.

    Args:
        session: the session whose world makes the call.
        group: the native number of the process set.
        name: the full name.
        front: the front end that the tensor belongs to.
        collective: the collective that is called.
        tensor: the input.
        in_place: whether the result overwrites the input.
        options: the collective's options, with all defaults filled in.
        process_set: the ranks that take part.
        take: a function from the received rows to the result; None: the rows themselves.
    """
    if collective.before_world and session.only_arrived:
        return Known(tensor if in_place else front.copy(tensor))
    dtype = front.ready_dtype(tensor) if collective.is_quick else None
    if dtype is None:
        output = tensor if in_place else None
        request, ready, finish = member(
            session, group, name, front, collective, tensor, output, options, process_set, take
        )
        return front.call_of(session, (request,), (ready,), lambda handles: finish(handles[0]))
    collective.check_member(front, tensor, dtype, name, options)
    if collective.rows is not _SAME:
        return _call_of_rows(session, group, name, front, collective, tensor, dtype, options, process_set, take)
    result = tensor if in_place else front.empty_like(tensor)
    encoded, shape = name.encode(), tensor.shape
    single = session.pool.single(encoded, shape)
    input, output, native = front.address(tensor), front.address(result), collective.native_options(options)
    single.fill(collective.kind, dtype, group, shape, encoded, input, output, native)

    def finish_quickly(_: Any) -> Tensor:
        if result is tensor:  # Also holds the input until the engine has read it.
            front.note_write(result)
        return result

    return Pending(session.engine, single, finish_quickly)


def _call_of_rows(
    session: Session,
    group: int,
    name: str,
    front: FrontEnd[Tensor],
    collective: Collective,
    tensor: Tensor,
    dtype: DType,
    options: Options,
    process_set: ProcessSet,
    take: Take | None,
) -> Call:
    """Return a call of a ready tensor whose result has another number of rows."""
    result = None
    if collective.rows is Rows.SHARED:
        result = _target(front, collective, tensor, tensor, None, process_set)
    encoded, shape = name.encode(), tensor.shape
    single = session.pool.single(encoded, shape)
    input, output = front.address(tensor), 0 if result is None else front.address(result)
    single.fill(collective.kind, dtype, group, shape, encoded, input, output, collective.native_options(options))

    def finish(handles: Sequence[int], _: Tensor = tensor) -> Any:
        # The tensor is held: the engine reads it until now.
        if result is not None:
            return result
        rows = received(session, handles[0], front, tensor)
        return rows if take is None else take(rows)

    return Pending(session.engine, single, finish)


# --- several tensors -------------------------------------------------------------------------------------------


def call_of_several(
    session: Session,
    group: int,
    name: str,
    front: FrontEnd[Tensor],
    collective: Collective,
    tensors: Sequence[Tensor],
    in_place: bool,
    options: Options,
    process_set: ProcessSet,
    take: Take | None = None,
) -> Call:
    """Return a call of several tensors, whose result is a tuple; otherwise the same as `call_of_one`."""
    tensors = tuple(tensors)
    if tensors and collective.rows is _SAME and all(map(front.is_ready, tensors)):
        return _series_call(session, group, name, front, collective, tensors, in_place, options)
    front.check_together(tensors)
    outputs: Sequence[Tensor | None] = tensors if in_place else (None,) * len(tensors)
    members = [
        member(session, group, full_name, front, collective, tensor, output, options, process_set, take)
        for full_name, tensor, output in zip(member_names(name, len(tensors)), tensors, outputs, strict=True)
    ]
    return call_of_members(session, front, members)


def _series_call(
    session: Session,
    group: int,
    name: str,
    front: FrontEnd[Tensor],
    collective: Collective,
    tensors: tuple[Tensor, ...],
    in_place: bool,
    options: Options,
) -> Call:
    # Only lists of the fields that differ are made for each tensor.
    dtypes, shapes = tuple([tensor.dtype for tensor in tensors]), tuple([tensor.shape for tensor in tensors])

    def requests() -> list[NativeRequest]:
        return [
            make_request(
                collective.kind,
                "",
                dtype=checked_dtype(front, collective, tensor, name, options),
                group=group,
                shape=tensor.shape,
            )
            for tensor in tensors
        ]

    # The operation that `Collective.check` checks; factors and the root may differ in each call.
    series = session.pool.series((collective.kind, group, dtypes, shapes, options.get("op")), requests)
    results = tensors if in_place else tuple(front.empty_likes(tensors))
    address = front.address
    inputs = [address(tensor) for tensor in tensors]
    series.name(name)
    series.ask_for(collective.native_options(options))
    series.place(inputs, inputs if in_place else [address(result) for result in results])

    def finish(_: Any) -> tuple[Tensor, ...]:
        if results is tensors:  # Also holds the inputs until the engine has read them.
            front.note_writes(results)
        return results

    return Pending(session.engine, series, finish)


def call_of_members(session: Session, front: FrontEnd[Tensor], members: Sequence[Member]) -> Call:
    """Return a call of members, whose result is the tuple of theirs."""
    if not members:
        return Known(())
    requests, ready, finishes = zip(*members, strict=True)

    def finish(handles: Iterable[int]) -> tuple[Any, ...]:
        return tuple(finish_one(handle) for finish_one, handle in zip(finishes, handles, strict=True))

    return front.call_of(session, requests, ready, finish)


def allreduce_call(
    front: FrontEnd[Tensor],
    session: Session,
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor | None],
    names: Sequence[str],
    options: Options,
    group: int,
) -> Call:
    """Return a call that reduces each tensor into its output (None: a new one), under its full name.

    The result is the outputs.
    """
    # An allreduce's request is the same for every process set.
    members = [
        member(session, group, name, front, ALLREDUCE, tensor, output, options, global_process_set)
        for tensor, output, name in zip(tensors, outputs, names, strict=True)
    ]
    return call_of_members(session, front, members)


def member_names(name: str, count: int) -> list[str]:
    """Return the full names of the members of a grouped call: `<name>_1of3` and so on."""
    return [f"{name}_{number}of{count}" for number in range(1, count + 1)]


# --- members ---------------------------------------------------------------------------------------------------


def member(
    session: Session,
    group: int,
    name: str,
    front: FrontEnd[Tensor],
    collective: Collective,
    tensor: Tensor,
    output: Tensor | None,
    options: Options,
    process_set: ProcessSet,
    take: Take | None = None,
    residual: Tensor | None = None,
) -> Member:
    """Return the part of one tensor, wherever it is, in a call.

    Args:
        session: the session whose world makes the call.
        group: the native number of the process set.
        name: the full name.
        front: the front end that the tensor belongs to.
        collective: the collective that is called.
        tensor: the input.
        output: a tensor of the input's shape and type for the result; None: a new tensor.
        options: the settled options of the collective, which may include others.
        process_set: the ranks that take part.
        take: a function from the received rows to the result; None: the rows themselves.
        residual: the residual (see `Feedback`), which the engine reads and writes.
    """
    dtype = checked_dtype(front, collective, tensor, name, options)
    fields = collective.fields(front, options, tensor.shape, len(process_set.ranks))
    ready = front.stage(tensor)
    stream = front.stream_of(ready)
    if collective.receives_rows:
        request = make_request(
            collective.kind,
            name,
            dtype=dtype,
            group=group,
            shape=tensor.shape,
            input=front.address(ready),
            stream=stream,
            **fields,
        )

        def finish_received(handle: int, _: Tensor = ready) -> Any:
            # `ready` is held: the engine reads it until now.
            rows = received(session, handle, front, tensor)
            return rows if take is None else take(rows)

        return request, ready, finish_received
    target = _target(front, collective, tensor, ready, output, process_set)
    request = make_request(
        collective.kind,
        name,
        dtype=dtype,
        group=group,
        shape=tensor.shape,
        input=front.address(ready),
        output=front.address(target),
        residual=None if residual is None else front.address(residual),
        stream=stream,
        **fields,
    )

    def finish(_: int, held: Any = (ready, residual)) -> Tensor:
        # The engine uses the held tensors until now.
        if output is None:
            return front.deliver(target, tensor)
        if target is not output:
            front.assign(output, target)
        if output is tensor:
            front.note_writes((output,))
        return output

    return request, ready, finish


def checked_dtype(
    front: FrontEnd[Tensor], collective: Collective, tensor: Tensor, name: str, options: Options
) -> ElementType:
    """Return a tensor's element type for the engine.

    Raises:
        ValueError: the collective does not support the tensor.
    """
    dtype = front.dtype(tensor)
    collective.check_member(front, tensor, dtype, name, options)
    return dtype


def reducible_dtype(front: FrontEnd[Tensor], tensor: Tensor) -> DType:
    """Return the engine's element type of a gradient.

    Raises:
        ValueError: it cannot be reduced as it is.
    """
    dtype = checked_dtype(front, ALLREDUCE, tensor, ALLREDUCE.name, {"op": Sum})
    assert isinstance(dtype, DType)
    return dtype


def _target(
    front: FrontEnd[Tensor],
    collective: Collective,
    tensor: Tensor,
    ready: Tensor,
    output: Tensor | None,
    process_set: ProcessSet,
) -> Tensor:
    """Return the ready tensor to which the engine writes the result."""
    if collective.rows is Rows.SHARED:
        # A rank that is not a member gets its error from the engine.
        position = process_set.rank() if process_set.included() else 0
        shape = collective.result_shape(tensor.shape, len(process_set.ranks), position)
        return front.empty_beside(ready, [length or 0 for length in shape])
    if ready is not tensor:
        return ready  # A staged tensor's result goes where it was staged.
    return front.empty_like(tensor) if output is None else output


def received(session: Session, handle: int, front: FrontEnd[Tensor], like: Tensor) -> Received:
    """Copy what a request has received out of the engine's memory.

    Args:
        session: the session of the call.
        handle: the handle of a finished request whose result is rows like those of `like`.
        front: the front end that the tensors belong to.
        like: a tensor with the type, the device and the shape of a row.
    """
    address, counts = session.engine.result(handle)
    if not address and (stream := front.stream_of(like)) is not None:
        rows = front.empty_beside(like, (sum(counts), *like.shape[1:]))
        if rows.nbytes:
            session.engine.take(handle, front.address(rows), stream)
        return Received(rows, counts)
    host = front.empty(like, (sum(counts), *like.shape[1:]))
    if host.nbytes:
        ctypes.memmove(front.address(host), address, host.nbytes)
    return Received(front.deliver(host, like), counts)
