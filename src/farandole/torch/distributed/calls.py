"""From the arguments of c10d to native requests, and from their results to c10d's outputs.

Each function makes one `Call`: requests that have no names yet, the outputs, and what brings the results there.
Nothing is copied that the engine can use where it lies. Tensors that are not contiguous go through a copy.

Two kinds of tensor: those that are *reduced* keep their shape and type, which all members must share; those that are
only *moved* go as a flat row of elements, whatever their shape, and in types that the engine does not know as bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce as fold
from typing import Any

import torch
import torch.distributed as dist

from farandole.core.binding import NativeRequest
from farandole.core.dtype import Average, DType, Kind, Max, Min, Product, Sum
from farandole.core.engine import Engine
from farandole.core.request import make_request
from farandole.errors import InvalidRequestError
from farandole.torch.collectives.call import DTYPES

Finish = Callable[[Engine, Sequence[int]], None]

NATIVE_OPS = {
    dist.ReduceOp.SUM: Sum,
    dist.ReduceOp.AVG: Average,
    dist.ReduceOp.MIN: Min,
    dist.ReduceOp.MAX: Max,
    dist.ReduceOp.PRODUCT: Product,
    dist.ReduceOp.PREMUL_SUM: Sum,
}
# The engine has no bitwise operations; on truth values they are what it has.
OPS_ON_BOOL = {dist.ReduceOp.BAND: Min, dist.ReduceOp.BOR: Max}
BITWISE = {
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}
# Complex numbers are reduced as pairs of real ones, which is right for these alone.
OPS_ON_COMPLEX = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM)


@dataclass
class Call:
    """One call of c10d, ready to be submitted.

    Attributes:
        label: the name of the collective.
        outputs: the tensors that hold the result.
        requests: with empty names.
        finish: brings results to the outputs, given the handles of the requests. None: they are there already.
        kept: tensors that the engine uses until the requests are done.
    """

    label: str
    outputs: list[torch.Tensor]
    requests: list[NativeRequest] = field(default_factory=list)
    finish: Finish | None = None
    kept: list[torch.Tensor] = field(default_factory=list)


# --- tensors -------------------------------------------------------------------------------------------------


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the same elements, one after the other in memory: itself if it is so already.

    Raises:
        InvalidRequestError: it is sparse, or not on the CPU.
    """
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise InvalidRequestError(
            f"the farandole backend works on dense CPU tensors, not on a {tensor.layout} tensor on {tensor.device}. "
            "Move it to the CPU, or use a backend for its device in a group of its own."
        )
    return tensor if _is_packed(tensor) else tensor.detach().resolve_conj().resolve_neg().contiguous()


def _is_packed(tensor: torch.Tensor) -> bool:
    """Say whether the elements lie one after the other in memory, as they are."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _copies_back(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Finish | None:
    """Return what copies from the first to the second of each pair, unless both are the same tensor."""
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
        width: native elements in one element of the tensor.
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
        """Native elements in all."""
        return self.tensor.numel() * self.width

    @property
    def element_size(self) -> int:
        """Bytes of a native element."""
        return self.tensor.element_size() // self.width


def _check_same_type(tensors: Sequence[torch.Tensor]) -> None:
    if any(tensor.dtype != tensors[0].dtype for tensor in tensors):
        kinds = sorted({str(tensor.dtype) for tensor in tensors})
        raise InvalidRequestError(f"the tensors of one collective must have one type, not {', '.join(kinds)}.")


def _write(address: int, tensor: torch.Tensor) -> None:
    """Copy a tensor's elements from the engine's memory."""
    if not tensor.numel():
        return
    size = tensor.numel() * tensor.element_size()
    if _is_packed(tensor):
        ctypes.memmove(tensor.data_ptr(), address, size)
    else:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype)
        ctypes.memmove(copy.data_ptr(), address, size)
        tensor.detach().copy_(copy)


def _write_pieces(engine: Engine, handle: int, outputs: Sequence[torch.Tensor], width: int) -> None:
    """Cut a native result into one output for each member, after checking that they are as long as what came."""
    address, sizes = engine.result(handle)
    _check_sizes(sizes, [output.numel() * width for output in outputs], width)
    for output in outputs:
        _write(address, output)
        address += output.numel() * output.element_size()


def _check_sizes(sent: Sequence[int], expected: Sequence[int], width: int = 1) -> None:
    for rank, (theirs, ours) in enumerate(zip(sent, expected, strict=True)):
        if theirs != ours:
            raise InvalidRequestError(
                f"rank {rank} of the group sent {theirs // width} elements, but this rank's tensor for them has "
                f"{ours // width}. Give the output the size of what is sent."
            )


# --- reductions ----------------------------------------------------------------------------------------------


@dataclass
class Reduction:
    """What c10d's ReduceOp means for one tensor.

    Attributes:
        native: the native operation; None when the engine has none.
        source: the dense tensor to be reduced, by itself or scaled.
        bitwise: instead of the native operation, what combines two tensors.
    """

    native: int | None
    source: torch.Tensor
    bitwise: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None

    @classmethod
    def of(cls, op: Any, tensor: torch.Tensor) -> Reduction:
        """Return the meaning of `op` for a tensor.

        Raises:
            InvalidRequestError: there is none.
        """
        kind = getattr(op, "op", op)
        source = dense(tensor)
        if source.is_complex():
            if kind not in OPS_ON_COMPLEX:
                raise InvalidRequestError(f"{kind} has no meaning for complex numbers.")
            source = torch.view_as_real(source.detach())
        if source.dtype not in DTYPES:
            raise InvalidRequestError(f"the farandole backend cannot reduce {source.dtype}. Convert the tensor first.")
        if kind == dist.ReduceOp.PREMUL_SUM:
            factor = op.factor
            return cls(Sum, (source.detach() * factor).to(source.dtype))
        if source.dtype == torch.bool and kind in OPS_ON_BOOL:
            return cls(OPS_ON_BOOL[kind], source)
        if kind in BITWISE:
            if source.is_floating_point():
                raise InvalidRequestError(f"{kind} has no meaning for {source.dtype}.")
            return cls(None, source, BITWISE[kind])
        if kind not in NATIVE_OPS:
            raise InvalidRequestError(f"the farandole backend does not know the operation {kind}.")
        return cls(NATIVE_OPS[kind], source)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor


def allreduce(label: str, tensors: Sequence[torch.Tensor], op: Any, keep_input: bool = False) -> Call:
    """Reduce tensors in place over all members; with `keep_input`, to nowhere: another member wants the result."""
    call = Call(label, [] if keep_input else list(tensors))
    if any(tensor.layout is torch.sparse_coo for tensor in tensors):
        return _sparse_allreduce(label, tensors, op)
    pairs = []
    for tensor in tensors:
        reduction = Reduction.of(op, tensor)
        if reduction.native is None:
            return _bitwise_allreduce(call, tensors, op)
        place = tensor if reduction.source is tensor else dense(tensor)
        target = _real(torch.empty_like(place, requires_grad=False) if keep_input else place)
        call.requests.append(_reduce_request(Kind.ALLREDUCE, reduction, reduction.source.shape, target))
        call.kept += reduction.source, target
        if not keep_input:
            pairs.append((place, tensor))
    call.finish = _copies_back(pairs)
    return call


def _reduce_request(kind: Kind, reduction: Reduction, shape: Sequence[int], target: torch.Tensor) -> NativeRequest:
    source = reduction.source
    return make_request(
        kind,
        "",
        dtype=DTYPES[source.dtype],
        op=reduction.native or 0,
        shape=shape,
        input=source.data_ptr(),
        output=target.data_ptr(),
    )


def _bitwise_allreduce(call: Call, tensors: Sequence[torch.Tensor], op: Any) -> Call:
    """Gather what all members have, and combine it here."""
    finishes = []
    for tensor in tensors:
        reduction = Reduction.of(op, tensor)
        row = Row.of(reduction.source)
        call.requests.append(_gather_request(row))
        call.kept.append(row.tensor)
        finishes.append((reduction, tensor))

    def finish(engine: Engine, handles: Sequence[int]) -> None:
        for handle, (reduction, tensor) in zip(handles, finishes, strict=True):
            address, sizes = engine.result(handle)
            _check_sizes(sizes, [reduction.source.numel()] * len(sizes))
            everyone = torch.empty((len(sizes), *reduction.source.shape), dtype=reduction.source.dtype)
            _write(address, everyone)
            if call.outputs and reduction.bitwise is not None:
                tensor.detach().copy_(fold(reduction.bitwise, everyone))

    call.finish = finish
    return call


def _sparse_allreduce(label: str, tensors: Sequence[torch.Tensor], op: Any) -> Call:
    """Sum sparse tensors in place: gather everybody's elements, and add up those of one place."""
    (tensor,) = tensors
    if getattr(op, "op", op) != dist.ReduceOp.SUM:
        raise InvalidRequestError("sparse tensors can only be summed.")
    mine = tensor.detach().coalesce()
    indices = mine.indices().t().contiguous()  # one element a row, as the engine gathers
    values = mine.values().contiguous()
    call = Call(label, [tensor], kept=[indices, values])
    for part in (indices, values):
        call.requests.append(
            make_request(Kind.ALLGATHER, "", dtype=DTYPES[part.dtype], shape=part.shape, input=part.data_ptr())
        )

    def finish(engine: Engine, handles: Sequence[int]) -> None:
        gathered = []
        for handle, part in zip(handles, (indices, values), strict=True):
            address, sizes = engine.result(handle)
            everyone = torch.empty((sum(sizes), *part.shape[1:]), dtype=part.dtype)
            _write(address, everyone)
            gathered.append(everyone)
        total = torch.sparse_coo_tensor(gathered[0].t(), gathered[1], tensor.shape, check_invariants=False)
        with torch.no_grad():  # detach() would make a sparse tensor that shares nothing.
            tensor.copy_(total.coalesce())

    call.finish = finish
    return call


def reduce_scatter(
    label: str, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], op: Any, size: int
) -> Call:
    """Reduce each input over all members, and leave in its output one of `size` equal parts: this member's."""
    call = Call(label, list(outputs))
    pairs = []
    for output, tensor in zip(outputs, inputs, strict=True):
        _check_same_type((output, tensor))
        if tensor.numel() != output.numel() * size:
            raise InvalidRequestError(
                f"{label}: the input has {tensor.numel()} elements, the output {output.numel()}; the input needs "
                f"{size} times those of the output, a part for each member."
            )
        reduction = Reduction.of(op, tensor)
        if reduction.native is None:
            raise InvalidRequestError(f"{label}: {op} is not available. Use all_reduce and take this rank's part.")
        place = dense(output)
        target = _real(place)
        call.requests.append(_reduce_request(Kind.REDUCESCATTER, reduction, (size, target.numel()), target))
        call.kept += reduction.source, place
        pairs.append((place, output))
    call.finish = _copies_back(pairs)
    return call


def uneven_reduce_scatter(output: torch.Tensor, parts: Sequence[torch.Tensor], op: Any, rank: int) -> Call:
    """Reduce parts of different sizes: all of them everywhere, of which this member keeps its own."""
    whole = torch.cat([part.detach().reshape(-1) for part in parts])
    call = allreduce("reduce_scatter", [whole], op)
    begins = sum(part.numel() for part in parts[:rank])
    combined = call.finish

    def finish(engine: Engine, handles: Sequence[int]) -> None:
        if combined is not None:
            combined(engine, handles)
        output.detach().copy_(whole[begins : begins + output.numel()].view(output.shape))

    call.outputs, call.finish = [output], finish
    return call


# --- movements -----------------------------------------------------------------------------------------------


def broadcast(label: str, tensors: Sequence[torch.Tensor], root: int) -> Call:
    """Give all members the root's tensors, in place."""
    call = Call(label, list(tensors))
    pairs = []
    for tensor in tensors:
        row = Row.of(tensor)
        address = row.tensor.data_ptr()
        shape = (*tensor.shape, row.width) if row.width > 1 else tensor.shape
        call.requests.append(
            make_request(Kind.BROADCAST, "", dtype=row.dtype, root=root, shape=shape, input=address, output=address)
        )
        call.kept.append(row.tensor)
        pairs.append((row.tensor, tensor))
    call.finish = _copies_back(pairs)
    return call


def _gather_request(row: Row, output: int | None = None) -> NativeRequest:
    return make_request(
        Kind.ALLGATHER, "", dtype=row.dtype, shape=(row.count,), input=row.tensor.data_ptr(), output=output
    )


def _place(output: torch.Tensor) -> int | None:
    """Return where the engine can write a result of equal parts; None: it has to go through `_write`."""
    return output.data_ptr() if output.device.type == "cpu" and _is_packed(output) else None


def allgather(label: str, outputs: Sequence[Sequence[torch.Tensor]], tensors: Sequence[torch.Tensor]) -> Call:
    """Gather all members' tensors, which may have different sizes: for each tensor, one output for each member."""
    call = Call(label, [part for parts in outputs for part in parts])
    rows = []
    for parts, tensor in zip(outputs, tensors, strict=True):
        _check_same_type((*parts, tensor))
        rows.append(Row.of(tensor))
        call.requests.append(_gather_request(rows[-1]))
        call.kept.append(rows[-1].tensor)

    def finish(engine: Engine, handles: Sequence[int]) -> None:
        for handle, parts, row in zip(handles, outputs, rows, strict=True):
            _write_pieces(engine, handle, parts, row.width)

    call.finish = finish
    return call


def allgather_flat(label: str, outputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], size: int) -> Call:
    """Gather all members' tensors, which have one size, one after the other into one output; several such pairs."""
    call = Call(label, list(outputs))
    rows = []
    for output, tensor in zip(outputs, tensors, strict=True):
        _check_same_type((output, tensor))
        if output.numel() != tensor.numel() * size:
            raise InvalidRequestError(
                f"{label}: the output has {output.numel()} elements, the input {tensor.numel()}; the output needs "
                f"{size} times those of the input, a part for each member."
            )
        row = Row.of(tensor)
        rows.append(row)
        call.requests.append(_gather_request(row, _place(output)))
        call.kept.append(row.tensor)

    def finish(engine: Engine, handles: Sequence[int]) -> None:
        for handle, output, row in zip(handles, outputs, rows, strict=True):
            address, sizes = engine.result(handle)
            _check_sizes(sizes, [row.count] * len(sizes), row.width)
            if address:
                _write(address, output)

    call.finish = finish
    return call


def exchange(label: str, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], like: torch.Tensor) -> Call:
    """Send the n-th input to the n-th member, and receive its part in the n-th output.

    Args:
        label: the collective that is made of this.
        outputs: one for each member, empty where nothing comes.
        inputs: one for each member, empty where nothing goes.
        like: a tensor of the type of all of them.
    """
    _check_same_type((*outputs, *inputs, like))
    filled = [part.detach().reshape(-1) for part in inputs if part.numel()]
    whole = filled[0] if len(filled) == 1 else torch.cat(filled) if filled else like.new_empty(0)
    row = Row.of(whole)
    splits = [part.numel() * row.width for part in inputs]
    request = make_request(
        Kind.ALLTOALL, "", dtype=row.dtype, shape=(row.count,), input=row.tensor.data_ptr(), splits=splits
    )

    def finish(engine: Engine, handles: Sequence[int]) -> None:
        _write_pieces(engine, handles[0], outputs, row.width)

    return Call(label, list(outputs), [request], finish, [row.tensor])


def exchange_rows(
    output: torch.Tensor, tensor: torch.Tensor, received: Sequence[int], sent: Sequence[int], size: int
) -> Call:
    """Send the members rows of one tensor, and receive theirs in another, in member order.

    Args:
        output: for what comes.
        tensor: what goes.
        received: rows from each member; empty: equal parts.
        sent: rows to each member; empty: equal parts.
        size: number of members.
    """
    _check_same_type((output, tensor))
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
    request = make_request(
        Kind.ALLTOALL,
        "",
        dtype=row.dtype,
        shape=(row.count,),
        input=row.tensor.data_ptr(),
        output=_place(output) if equal and output.data_ptr() != tensor.data_ptr() else None,
        splits=None if equal else splits,
    )

    def finish(engine: Engine, handles: Sequence[int]) -> None:
        address, sizes = engine.result(handles[0])
        _check_sizes(sizes, expected, row.width)
        if address:
            _write(address, output)

    return Call("all_to_all_single", [output], [request], finish, [row.tensor])


def _rows(name: str, tensor: torch.Tensor, splits: Sequence[int], size: int) -> Sequence[int]:
    if tensor.dim() == 0:
        raise InvalidRequestError(f"all_to_all_single: the {name} has no dimension to be split along.")
    rows = tensor.shape[0]
    if not splits:
        if rows % size:
            raise InvalidRequestError(
                f"all_to_all_single: the {name} has {rows} rows, which {size} members cannot share equally. "
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
    )
    finish = _copies_back([(row.tensor, tensor)]) if rank == destination else None
    return Call(label, [tensor], [request], finish, [row.tensor])


def barrier() -> Call:
    """Wait for all members."""
    return Call("barrier", [], [make_request(Kind.BARRIER, "")])
