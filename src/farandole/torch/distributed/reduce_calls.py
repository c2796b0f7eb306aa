"""The calls of c10d that reduce tensors, made as in `calls`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce as fold
from typing import Any

import torch
import torch.distributed as dist

from farandole.base.request_kind import Kind
from farandole.errors import InvalidRequestError
from farandole.torch.collectives.tensors import DTYPES, FRONT
from farandole.torch.distributed.calls import (
    Call,
    Row,
    check_alike,
    check_sizes,
    copies_back,
    dense,
    gather_request,
    write_received,
)
from farandole.worker.core.binding import NativeRequest
from farandole.worker.core.dtype import Average, Max, Min, Product, Sum
from farandole.worker.core.engine import Engine
from farandole.worker.core.request import make_request

NATIVE_OPS = {
    dist.ReduceOp.SUM: Sum,
    dist.ReduceOp.AVG: Average,
    dist.ReduceOp.MIN: Min,
    dist.ReduceOp.MAX: Max,
    dist.ReduceOp.PRODUCT: Product,
    dist.ReduceOp.PREMUL_SUM: Sum,
}
# The engine has no bitwise operations, but on truth values its own operations are equivalent.
OPS_ON_BOOL = {dist.ReduceOp.BAND: Min, dist.ReduceOp.BOR: Max}
BITWISE = {
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}
# Complex numbers are reduced as pairs of real ones, which is correct only for these operations.
OPS_ON_COMPLEX = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM)


# --- the meaning of an operation--------------------------------------------------------------------------------


@dataclass
class Reduction:
    """The meaning of c10d's ReduceOp for one tensor.

    Attributes:
        native: the native operation; None if the engine does not have it.
        source: the dense tensor to be reduced: the given one, or scaled.
        bitwise: a function that combines two tensors, used instead of a native operation.
    """

    native: int | None
    source: torch.Tensor
    bitwise: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None

    @classmethod
    def of(cls, op: Any, tensor: torch.Tensor) -> Reduction:
        """Return the meaning of `op` for a tensor.

        Raises:
            InvalidRequestError: `op` has no meaning for this tensor.
        """
        kind = getattr(op, "op", op)
        source = dense(tensor)
        if source.is_complex():
            if kind not in OPS_ON_COMPLEX:
                raise InvalidRequestError(f"{kind} is not defined for complex numbers.")
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
                raise InvalidRequestError(f"{kind} is not defined for {source.dtype}.")
            return cls(None, source, BITWISE[kind])
        if kind not in NATIVE_OPS:
            raise InvalidRequestError(f"the farandole backend does not know the operation {kind}.")
        return cls(NATIVE_OPS[kind], source)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor


def allreduce(label: str, tensors: Sequence[torch.Tensor], op: Any, keep_input: bool = False) -> Call:
    """Reduce tensors in place over all members; with `keep_input`, drop the result, which only another member needs."""
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
    call.finish = copies_back(pairs)
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
        stream=FRONT.stream_of(source),
    )


def _bitwise_allreduce(call: Call, tensors: Sequence[torch.Tensor], op: Any) -> Call:
    """Gather all members' tensors, and combine them here."""
    finishes = []
    for tensor in tensors:
        reduction = Reduction.of(op, tensor)
        row = Row.of(reduction.source)
        call.requests.append(gather_request(row))
        call.kept.append(row.tensor)
        finishes.append((reduction, tensor))

    def finish(engine: Engine, handles: Sequence[int]) -> None:
        for handle, (reduction, tensor) in zip(handles, finishes, strict=True):
            sizes = engine.result(handle)[1]
            check_sizes(sizes, [reduction.source.numel()] * len(sizes))
            everyone = FRONT.empty_beside(reduction.source, (len(sizes), *reduction.source.shape))
            write_received(engine, handle, reduction.source, [everyone])
            if call.outputs and reduction.bitwise is not None:
                tensor.detach().copy_(fold(reduction.bitwise, everyone))

    call.finish = finish
    return call


def _sparse_allreduce(label: str, tensors: Sequence[torch.Tensor], op: Any) -> Call:
    """Sum sparse tensors in place: gather the elements of all members, and add those with the same index."""
    (tensor,) = tensors
    if getattr(op, "op", op) != dist.ReduceOp.SUM:
        raise InvalidRequestError("sparse tensors can only be summed: pass a dense tensor for other operations.")
    mine = tensor.detach().coalesce()
    indices = mine.indices().t().contiguous()  # one element a row, as the engine gathers
    values = mine.values().contiguous()
    call = Call(label, [tensor], kept=[indices, values])
    for part in (indices, values):
        call.requests.append(
            make_request(
                Kind.ALLGATHER,
                "",
                dtype=DTYPES[part.dtype],
                shape=part.shape,
                input=part.data_ptr(),
                stream=FRONT.stream_of(part),
            )
        )

    def finish(engine: Engine, handles: Sequence[int]) -> None:
        gathered = []
        for handle, part in zip(handles, (indices, values), strict=True):
            everyone = FRONT.empty_beside(part, (sum(engine.result(handle)[1]), *part.shape[1:]))
            write_received(engine, handle, part, [everyone])
            gathered.append(everyone)
        total = torch.sparse_coo_tensor(gathered[0].t(), gathered[1], tensor.shape, check_invariants=False)
        with torch.no_grad():  # detach() would make a sparse tensor that shares no memory.
            tensor.copy_(total.coalesce())

    call.finish = finish
    return call


def reduce_scatter(
    label: str, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], op: Any, size: int
) -> Call:
    """Reduce each input over all members, and store this member's part, one of `size` equal parts, in its output."""
    call = Call(label, list(outputs))
    pairs = []
    for output, tensor in zip(outputs, inputs, strict=True):
        check_alike((output, tensor))
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
    call.finish = copies_back(pairs)
    return call


def uneven_reduce_scatter(output: torch.Tensor, parts: Sequence[torch.Tensor], op: Any, rank: int) -> Call:
    """Reduce parts of different sizes: all members get all results, and each keeps its own part."""
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
