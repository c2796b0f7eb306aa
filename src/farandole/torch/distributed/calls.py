"""Converts the arguments of c10d to native requests, and their results to c10d's outputs.

Each function makes one `Call`: requests that have no names yet, the outputs, and a function that copies the results
there. Tensors that the engine can use in place, in host memory or in that of a GPU, are not copied. Tensors that are
not contiguous go through a copy.

Tensors that are *reduced* keep their shape and type, which must be the same on all members. Tensors that are only
*moved* are sent as a flat row of elements, whatever their shape; types that the engine does not know are sent as bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from farandole.base.request_kind import Kind
from farandole.errors import InvalidRequestError
from farandole.torch.collectives.tensors import DTYPES, FRONT, RAW_STREAMS
from farandole.worker.core.binding import NativeRequest
from farandole.worker.core.dtype import DType
from farandole.worker.core.engine import Engine
from farandole.worker.core.request import make_request

Finish = Callable[[Engine, Sequence[int]], None]


@dataclass
class Call:
    """One call of c10d, ready to be submitted.

    Attributes:
        label: the name of the collective.
        outputs: the tensors that hold the result.
        requests: the requests, whose names are empty.
        finish: a function that copies the results to the outputs, given the handles of the requests. None: they are
            already there.
        kept: tensors that the engine uses until the requests are done.
    """

    label: str
    outputs: list[torch.Tensor]
    requests: list[NativeRequest] = field(default_factory=list)
    finish: Finish | None = None
    kept: list[torch.Tensor] = field(default_factory=list)

    @property
    def device(self) -> torch.device | None:
        """The GPU whose memory the engine uses; None: host memory."""
        return self.kept[0].device if self.kept and not self.kept[0].is_cpu else None


# --- tensors -------------------------------------------------------------------------------------------------


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the same elements in contiguous memory: itself if it is already contiguous.

    Raises:
        InvalidRequestError: it is sparse, or on a device whose memory the engine does not use.
    """
    if not (tensor.is_cpu or tensor.device.type in RAW_STREAMS) or tensor.layout is not torch.strided:
        raise InvalidRequestError(
            f"the farandole backend works on dense tensors of {' and '.join(('cpu', *RAW_STREAMS))}, not on a "
            f"{tensor.layout} tensor on {tensor.device}. Move it to the CPU, or use a backend for its device in a "
            "group of its own."
        )
    return tensor if _is_packed(tensor) else tensor.detach().resolve_conj().resolve_neg().contiguous()


def _is_packed(tensor: torch.Tensor) -> bool:
    """Return whether the memory is contiguous and has the elements' values, without pending conjugation or negation."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def copies_back(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Finish | None:
    """Return a function that copies from the first to the second of each pair; None if both are the same tensor."""
    different = [(source, target) for source, target in pairs if source is not target]
    if not different:
        return None

    def finish(_: Engine, __: Sequence[int]) -> None:
        for source, target in different:
            target.detach().copy_(source)

    return finish


@dataclass
class Row:
    """A dense tensor as a flat row of native elements.

    Attributes:
        tensor: the tensor.
        dtype: the native type.
        width: the number of native elements in one element of the tensor.
    """

    tensor: torch.Tensor
    dtype: DType
    width: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Row:
        """Return the row of a tensor, or of a dense copy of it."""
        native = DTYPES.get(tensor.dtype)
        if native is None:
            return cls(dense(tensor), DType.U8, tensor.element_size())
        return cls(dense(tensor), native, 1)

    @property
    def count(self) -> int:
        """The number of native elements."""
        return self.tensor.numel() * self.width

    @property
    def element_size(self) -> int:
        """The size of a native element in bytes."""
        return self.tensor.element_size() // self.width


def check_alike(tensors: Sequence[torch.Tensor]) -> None:
    """Raise InvalidRequestError unless all tensors have the same type and device."""
    check_same("have one type", [tensor.dtype for tensor in tensors])
    check_same("be on one device", [tensor.device for tensor in tensors])


def check_same(rule: str, found: Sequence[object]) -> None:
    """Raise InvalidRequestError, with the violated rule for tensors of one collective, unless all are the same."""
    if len(kinds := set(found)) > 1:
        several = ", ".join(sorted(map(str, kinds)))
        raise InvalidRequestError(f"the tensors of one collective must {rule}, not {several}.")


def write(address: int, tensor: torch.Tensor) -> None:
    """Copy a tensor's elements from the engine's host memory; to a GPU, in its current stream."""
    if not tensor.numel():
        return
    size = tensor.numel() * tensor.element_size()
    if tensor.is_cpu and _is_packed(tensor):
        ctypes.memmove(tensor.data_ptr(), address, size)
    else:
        copy = FRONT.empty(tensor, tensor.shape)
        ctypes.memmove(copy.data_ptr(), address, size)
        tensor.detach().copy_(copy, non_blocking=True)


def write_received(engine: Engine, handle: int, sent: torch.Tensor, outputs: Sequence[torch.Tensor]) -> None:
    """Copy the data that a request has received, of the type of `sent`, to outputs of that size, one after another."""
    address, _ = engine.result(handle)
    stream = FRONT.stream_of(sent)
    if not address and stream is not None:
        counts = [output.numel() for output in outputs]
        row = FRONT.empty_beside(sent, (sum(counts),))
        if row.numel():
            engine.take(handle, row.data_ptr(), stream)
        for output, piece in zip(outputs, row.split(counts), strict=True):
            output.detach().copy_(piece.view(output.shape))
        return
    for output in outputs:
        write(address, output)
        address += output.numel() * output.element_size()


def _write_pieces(engine: Engine, handle: int, row: Row, outputs: Sequence[torch.Tensor]) -> None:
    """Divide a native result into one output for each member, after checking that their lengths match."""
    check_sizes(engine.result(handle)[1], [output.numel() * row.width for output in outputs], row.width)
    write_received(engine, handle, row.tensor, outputs)


def check_sizes(sent: Sequence[int], expected: Sequence[int], width: int = 1) -> None:
    for rank, (theirs, ours) in enumerate(zip(sent, expected, strict=True)):
        if theirs != ours:
            raise InvalidRequestError(
                f"rank {rank} of the group sent {theirs // width} elements, but this rank's tensor for them has "
                f"{ours // width}. Give the output the size of the sent tensor."
            )


# --- movements -----------------------------------------------------------------------------------------------


def broadcast(label: str, tensors: Sequence[torch.Tensor], root: int) -> Call:
    """Copy the root's tensors to all members, in place."""
    call = Call(label, list(tensors))
    pairs = []
    for tensor in tensors:
        row = Row.of(tensor)
        address = row.tensor.data_ptr()
        shape = (*tensor.shape, row.width) if row.width > 1 else tensor.shape
        call.requests.append(
            make_request(
                Kind.BROADCAST,
                "",
                dtype=row.dtype,
                root=root,
                shape=shape,
                input=address,
                output=address,
                stream=FRONT.stream_of(row.tensor),
            )
        )
        call.kept.append(row.tensor)
        pairs.append((row.tensor, tensor))
    call.finish = copies_back(pairs)
    return call


def gather_request(row: Row, output: int | None = None) -> NativeRequest:
    return make_request(
        Kind.ALLGATHER,
        "",
        dtype=row.dtype,
        shape=(row.count,),
        input=row.tensor.data_ptr(),
        output=output,
        stream=FRONT.stream_of(row.tensor),
    )


def _place(output: torch.Tensor) -> int | None:
    """Return the address where an allgather's equal parts can be stored directly; None: `write` copies the result."""
    return output.data_ptr() if _is_packed(output) else None


def allgather(label: str, outputs: Sequence[Sequence[torch.Tensor]], tensors: Sequence[torch.Tensor]) -> Call:
    """Gather all members' tensors, which may have different sizes: for each tensor, one output for each member."""
    call = Call(label, [part for parts in outputs for part in parts])
    rows = []
    for parts, tensor in zip(outputs, tensors, strict=True):
        check_alike((*parts, tensor))
        rows.append(Row.of(tensor))
        call.requests.append(gather_request(rows[-1]))
        call.kept.append(rows[-1].tensor)

    def finish(engine: Engine, handles: Sequence[int]) -> None:
        for handle, parts, row in zip(handles, outputs, rows, strict=True):
            _write_pieces(engine, handle, row, parts)

    call.finish = finish
    return call


def allgather_flat(label: str, outputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], size: int) -> Call:
    """Gather all members' tensors, which have the same size, one after another into one output, for each pair."""
    call = Call(label, list(outputs))
    rows = []
    for output, tensor in zip(outputs, tensors, strict=True):
        check_alike((output, tensor))
        if output.numel() != tensor.numel() * size:
            raise InvalidRequestError(
                f"{label}: the output has {output.numel()} elements, the input {tensor.numel()}; the output needs "
                f"{size} times those of the input, a part for each member."
            )
        row = Row.of(tensor)
        rows.append(row)
        call.requests.append(gather_request(row, _place(output)))
        call.kept.append(row.tensor)

    def finish(engine: Engine, handles: Sequence[int]) -> None:
        for handle, output, row in zip(handles, outputs, rows, strict=True):
            sizes = engine.result(handle)[1]
            check_sizes(sizes, [row.count] * len(sizes), row.width)
            if _place(output) is None:
                write_received(engine, handle, row.tensor, [output])

    call.finish = finish
    return call


def exchange(label: str, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], like: torch.Tensor) -> Call:
    """Send the n-th input to the n-th member, and receive its part in the n-th output.

    Args:
        label: the name of the collective that uses this.
        outputs: one for each member, empty if nothing is received.
        inputs: one for each member, empty if nothing is sent.
        like: a tensor of the type of all of them.
    """
    check_alike((*outputs, *inputs, like))
    filled = [part.detach().reshape(-1) for part in inputs if part.numel()]
    whole = filled[0] if len(filled) == 1 else torch.cat(filled) if filled else like.new_empty(0)
    row = Row.of(whole)
    splits = [part.numel() * row.width for part in inputs]
    request = make_request(
        Kind.ALLTOALL,
        "",
        dtype=row.dtype,
        shape=(row.count,),
        input=row.tensor.data_ptr(),
        splits=splits,
        stream=FRONT.stream_of(row.tensor),
    )

    def finish(engine: Engine, handles: Sequence[int]) -> None:
        _write_pieces(engine, handles[0], row, outputs)

    return Call(label, list(outputs), [request], finish, [row.tensor])


def exchange_rows(
    output: torch.Tensor, tensor: torch.Tensor, received: Sequence[int], sent: Sequence[int], size: int
) -> Call:
    """Send the members rows of one tensor, and receive theirs in another, in member order.

    Args:
        output: the tensor that receives the rows.
        tensor: the tensor that is sent.
        received: rows from each member; empty: equal parts.
        sent: rows to each member; empty: equal parts.
        size: number of members.
    """
    check_alike((output, tensor))
    if output.numel() != tensor.numel() and not sent and not received:
        raise InvalidRequestError(
            f"all_to_all_single: the input has {tensor.numel()} elements, the output {output.numel()}. Without split "
            "sizes they need equal ones."
        )
    sends = _rows("input", tensor, sent, size)
    receives = _rows("output", output, received, size)
    row = Row.of(tensor)
    length = row.count // tensor.shape[0] if tensor.shape[0] else 0
    splits = [rows * length for rows in sends]
    expected = [rows * (output.numel() // output.shape[0] if output.shape[0] else 0) * row.width for rows in receives]
    equal = not sent and not received
    place = _place(output) if equal and output.data_ptr() != tensor.data_ptr() else None
    request = make_request(
        Kind.ALLTOALL,
        "",
        dtype=row.dtype,
        shape=(row.count,),
        input=row.tensor.data_ptr(),
        output=place,
        splits=None if equal else splits,
        stream=FRONT.stream_of(row.tensor),
    )

    def finish(engine: Engine, handles: Sequence[int]) -> None:
        check_sizes(engine.result(handles[0])[1], expected, row.width)
        if place is None:
            write_received(engine, handles[0], row.tensor, [output])

    return Call("all_to_all_single", [output], [request], finish, [row.tensor])


def _rows(name: str, tensor: torch.Tensor, splits: Sequence[int], size: int) -> Sequence[int]:
    if tensor.dim() == 0:
        raise InvalidRequestError(f"all_to_all_single: the {name} has no dimension to be split along.")
    rows = tensor.shape[0]
    if not splits:
        if rows % size:
            raise InvalidRequestError(
                f"all_to_all_single: the {name} has {rows} rows, which {size} members cannot divide equally. "
                f"Pass {name}_split_sizes."
            )
        return [rows // size] * size
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise InvalidRequestError(
            f"all_to_all_single: {name}_split_sizes is {list(splits)}, but needs {size} numbers that sum to the "
            f"{rows} rows of the {name}."
        )
    return splits


def transfer(label: str, tensor: torch.Tensor, source: int, destination: int, rank: int) -> Call:
    """Move a tensor from one member to another."""
    if source == destination:
        raise InvalidRequestError(
            f"{label}: rank {rank} of the group is both sender and receiver. Copy the tensor with copy_() instead."
        )
    row = Row.of(tensor)
    address = row.tensor.data_ptr()
    request = make_request(
        Kind.TRANSFER,
        "",
        dtype=row.dtype,
        root=source,
        peer=destination,
        shape=(row.count,),
        input=address if rank == source else None,
        output=address if rank == destination else None,
        stream=FRONT.stream_of(row.tensor),
    )
    finish = copies_back([(row.tensor, tensor)]) if rank == destination else None
    return Call(label, [tensor], [request], finish, [row.tensor])


def barrier() -> Call:
    """Wait for all members."""
    return Call("barrier", [], [make_request(Kind.BARRIER, "")])
