"""Collectives on anything that has Python's buffer protocol, without a framework.

For programs whose data is in a `bytearray`, an `array.array`, a `memoryview` or a NumPy array, and for measuring the
engine itself. Each function waits until it is done; the ranks' calls match by name, or by order if unnamed.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, cast

from farandole.base.request_kind import Kind, Rows
from farandole.errors import InvalidRequestError, MismatchError
from farandole.worker.core.basics import current
from farandole.worker.core.binding import NativeRequest
from farandole.worker.core.dtype import SIZES, Average, DType
from farandole.worker.core.group import ProcessSet, global_process_set
from farandole.worker.core.handle import Call, HandleTable, Pending
from farandole.worker.core.request import make_request
from farandole.worker.core.request_options import native_options
from farandole.worker.core.session import Session
from farandole.worker.core.submission import Submission

Result = TypeVar("Result")

# Any object with the buffer protocol; Python before 3.12 has no type for that.
Buffer = Any

# The values of `memoryview.format`; C's types have the same sizes on all supported platforms.
_FORMATS = {
    "B": DType.U8,
    "c": DType.U8,
    "b": DType.I8,
    "h": DType.I16,
    "i": DType.I32,
    "l": DType.I64,
    "q": DType.I64,
    "e": DType.F16,
    "f": DType.F32,
    "d": DType.F64,
    "?": DType.BOOL,
}


class _Memory:
    """A buffer's memory, which is kept alive as long as this object.

    Attributes:
        address: the address of its first byte.
        dtype: its element type.
        count: its number of elements.
    """

    __slots__ = ("_held", "address", "count", "dtype")

    def __init__(self, buffer: Buffer, dtype: DType | None) -> None:
        """Keep a buffer's memory; `dtype` None means the buffer's own type.

        Raises:
            ValueError: it cannot be written to, is not contiguous, or has elements of an unsupported type.
        """
        view = memoryview(buffer)
        if view.readonly or not view.c_contiguous:
            raise InvalidRequestError("a buffer must be contiguous and writable; pass bytearray(data), for example.")
        self.dtype = _dtype_of(view) if dtype is None else dtype
        self.count, rest = divmod(view.nbytes, SIZES[self.dtype])
        if rest:
            raise InvalidRequestError(f"{view.nbytes} bytes are not a whole number of elements of {self.dtype.name}.")
        self._held = (ctypes.c_char * view.nbytes).from_buffer(view)
        self.address = ctypes.addressof(self._held)


def _dtype_of(view: memoryview) -> DType:
    try:
        return _FORMATS[view.format.lstrip("@=<")]
    except KeyError:
        raise InvalidRequestError(
            f"the buffer's format {view.format!r} has no element type; name one, such as dtype=DType.F32."
        ) from None


def zeros(size: int) -> memoryview:
    """Return zeroed memory of `size` bytes in the arena, where collectives need no copy, or elsewhere if it is full."""
    block = current().engine.allocate(size) if size else None
    return memoryview(bytearray(size) if block is None else block.buffer()).cast("B")


def allreduce(
    buffer: Buffer,
    dtype: DType | None = None,
    op: int = Average,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Reduce a buffer over all ranks of a process set, in place.

    Args:
        buffer: a buffer with the same number of elements on all ranks.
        dtype: its element type; None: the buffer's own.
        op: Average, Sum, Adasum, Min, Max or Product.
        name: the name by which the ranks' calls match; None: by order.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.
        process_set: the ranks that take part.

    Raises:
        ValueError: an argument is not valid.
        HorovodInternalError: the ranks' buffers do not match, or a worker was lost.

    Example:
        >>> data = array.array("f", [1.0, 2.0])
        >>> allreduce(data, op=hvd.Sum)
        >>> data
        array('f', [1.0, 2.0])
    """
    memory = _Memory(buffer, dtype)
    factors = {"prescale": prescale_factor, "postscale": postscale_factor}
    _run(Kind.ALLREDUCE, name, process_set, memory, memory, {"op": op, **factors})


def grouped_allreduce(
    buffers: Sequence[Buffer],
    dtype: DType | None = None,
    op: int = Average,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Reduce several buffers together. Arguments as in `allreduce`."""
    memories = [_Memory(buffer, dtype) for buffer in buffers]

    def requests_of(group: int, full_name: str) -> list[NativeRequest]:
        return [
            make_request(
                Kind.ALLREDUCE,
                f"{full_name}_{number}of{len(memories)}",
                dtype=memory.dtype,
                op=op,
                group=group,
                shape=(memory.count,),
                input=memory.address,
                output=memory.address,
            )
            for number, memory in enumerate(memories, 1)
        ]

    _run_all("grouped_allreduce", name, process_set, requests_of, lambda session, handles: None)


def collective(
    kind: Kind,
    buffer: Buffer,
    output: Buffer | None = None,
    dtype: DType | None = None,
    op: int = Average,
    *,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Run a collective of any kind, in which all ranks' buffers are equally large.

    Args:
        kind: the collective.
        buffer: what this rank gives.
        output: room for what this rank gets, of `result_count` elements; None: the buffer itself.
        dtype: the element type of a kind that reduces; None: the buffer's own. Other kinds move bytes.
        op: the operation of a kind that reduces.
        root_rank: the root of a kind that has one, a rank in the world.
        name: ranks' calls match by name.
        process_set: the ranks that take part.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' buffers do not fit together, or a worker was lost.

    Example:
        >>> data, gathered = bytearray(b"ab"), bytearray(2)
        >>> collective(Kind.ALLGATHER, data, gathered)  # of one worker
        >>> gathered
        bytearray(b'ab')
    """
    sent = _Memory(buffer, dtype if kind.reduces else DType.U8)
    received = sent if output is None else _Memory(output, sent.dtype)
    _check_room(received, result_count(kind, sent.count, process_set))
    options: dict[str, float] = {}
    if kind.reduces:
        options["op"] = op
    if kind.has_root:
        options["root"] = root_rank
    # Such rows are in memory of the engine if the ranks' numbers of them turn out to differ.
    check = _check_in_place if kind.rows in (Rows.GATHERED, Rows.EXCHANGED) else None
    _run(kind, name, process_set, sent, received, options, check)


def result_count(kind: Kind, count: int, process_set: ProcessSet = global_process_set) -> int:
    """Return the number of elements that this rank gets where each rank gives `count`.

    If they cannot be shared equally, the first ranks get one more.
    """
    if kind.rows is Rows.GATHERED:
        return count * len(process_set.ranks)
    if kind.rows is Rows.SHARED:
        whole, more = divmod(count, len(process_set.ranks))
        return whole + (process_set.rank() < more)
    return count


def gather(
    part: Buffer, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[bytes, tuple[int, ...]]:
    """Return the parts of all ranks in rank order, and the size in bytes of each, which may differ."""
    sent = _Memory(part, DType.U8)

    def requests_of(group: int, full_name: str) -> list[NativeRequest]:
        return [make_request(Kind.ALLGATHER, full_name, group=group, shape=(sent.count,), input=sent.address)]

    return _run_all("gather", name, process_set, requests_of, _take_received)


def exchange(
    buffer: Buffer, sizes: Sequence[int], *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[bytes, tuple[int, ...]]:
    """Send each rank its part of `buffer`, of these sizes in bytes, and return the parts that this rank receives.

    Arguments as in `gather`.

    Raises:
        ValueError: the sizes are not one for each rank, or are more than the buffer has.
    """
    sent = _Memory(buffer, DType.U8)

    def requests_of(group: int, full_name: str) -> list[NativeRequest]:
        request = make_request(
            Kind.ALLTOALL, full_name, group=group, shape=(sent.count,), input=sent.address, splits=sizes
        )
        return [request]

    return _run_all("exchange", name, process_set, requests_of, _take_received)


def transfer(moves: Sequence[tuple[Buffer, int, int]], *, name: str) -> None:
    """Move buffers between pairs of ranks, one after another.

    Each move is passed by its two ranks only. Two ranks with several moves between them pass them in the same order.

    Args:
        moves: for each move, the data or room for it, the rank that sends it and the rank that receives it.
        name: the name of all moves; it may be reused when they are done.

    Raises:
        ValueError: this rank is neither sender nor receiver of a move, or is both.
    """
    memories = [_Memory(buffer, DType.U8) for buffer, _, _ in moves]

    def requests_of(group: int, full_name: str) -> list[NativeRequest]:
        rank, requests = global_process_set.rank(), []
        numbers: Counter[tuple[int, int]] = Counter()
        for (_, source, destination), memory in zip(moves, memories, strict=True):
            numbers[source, destination] += 1
            request = make_request(
                Kind.TRANSFER,
                f"{full_name}.{numbers[source, destination]}",
                group=group,
                root=source,
                peer=destination,
                shape=(memory.count,),
                input=memory.address if rank == source else None,
                output=memory.address if rank == destination else None,
            )
            requests.append(request)
        return requests

    _run_all("transfer", name, global_process_set, requests_of, lambda session, handles: None)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the process set have called this."""
    _run(Kind.BARRIER, None, process_set)


def _check_room(output: _Memory, count: int) -> None:
    if output.count != count:
        raise InvalidRequestError(f"the output has {output.count} elements of {output.dtype.name}, but needs {count}.")


def _check_in_place(address: int) -> None:
    if address:
        raise MismatchError("ranks' parts differ in size; here they must be equal.")


def _take_received(session: Session, handles: Any) -> tuple[bytes, tuple[int, ...]]:
    address, sizes = session.engine.result(handles[0])
    return ctypes.string_at(address, sum(sizes)) if sum(sizes) else b"", sizes


def _run_all(
    operation: str,
    name: str | None,
    process_set: ProcessSet,
    requests_of: Callable[[int, str], Sequence[NativeRequest]],
    finish: Callable[[Session, Any], Result],
) -> Result:
    """Run requests together, and return what `finish` makes of the session and their handles.

    `requests_of` makes the requests from the group and the full name, and keeps their memory alive.
    """

    def call_of(session: Session, group: int, full_name: str) -> Call:
        submission = Submission(requests_of(group, full_name))

        def done(handles: Any, _: Any = requests_of) -> Result:
            # The memory is held: the engine uses it until now.
            return finish(session, handles)

        return Pending(session.engine, submission, done)

    return cast(Result, current().carry_out(HandleTable.run, f"buffers.{operation}", name, process_set, call_of))


def _run(
    kind: Kind,
    name: str | None,
    process_set: ProcessSet,
    sent: _Memory | None = None,
    received: _Memory | None = None,
    options: Mapping[str, float] = MappingProxyType({}),
    check: Callable[[int], None] | None = None,
) -> None:
    def call_of(session: Session, group: int, full_name: str) -> Call:
        encoded, shape = full_name.encode(), () if sent is None else (sent.count,)
        dtype = DType.U8 if sent is None else sent.dtype
        input, output = (0 if memory is None else memory.address for memory in (sent, received))
        single = session.pool.single(encoded, shape)
        single.fill(kind, dtype, group, shape, encoded, input, output, native_options(options))

        def finish(handles: Any, _: Any = (sent, received)) -> None:
            # The memory is held: the engine uses it until now.
            if check is not None:
                check(session.engine.result(handles[0])[0])

        return Pending(session.engine, single, finish)

    current().carry_out(HandleTable.run, f"buffers.{kind.function}", name, process_set, call_of)
