"""alltoall: every rank gives some rows to every rank."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch

from farandole.core.dtype import Kind
from farandole.core.group import ProcessSet, global_process_set
from farandole.core.handle import Call
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.errors import InvalidRequestError
from farandole.torch.collectives.allgather import received
from farandole.torch.collectives.call import Member, call_of_one, later, native_dtype, now, tracked
from farandole.torch.staging import to_host

# Rows for each rank: a tensor of int32 on any device, or anything that gives whole numbers.
Splits = torch.Tensor | Iterable[int]


def rows_to_send(splits: Splits | None, rows: int, size: int) -> list[int]:
    """Return how many rows go to each of `size` ranks, of a tensor that has `rows`.

    Raises:
        ValueError: they do not fit the tensor or the number of ranks.

    Example:
        >>> rows_to_send(None, 6, 3)
        [2, 2, 2]
        >>> rows_to_send(torch.tensor([0, 5, 1], dtype=torch.int32), 6, 3)
        [0, 5, 1]
    """
    if splits is None:
        if rows % size:
            raise InvalidRequestError(
                f"splits not provided, but first dimension of tensor ({rows}) is not an even multiple of the number of "
                f"workers ({size}). Pass splits: the number of rows for each worker."
            )
        return [rows // size] * size
    numbers = _numbers(splits)
    if len(numbers) != size:
        raise InvalidRequestError(
            f"Number of entries in splits does not equal number of workers: {len(numbers)} entries, {size} workers."
        )
    if min(numbers) < 0:
        raise InvalidRequestError(f"splits cannot be negative, but are {numbers}.")
    if sum(numbers) > rows:
        raise InvalidRequestError(
            "Sum of splits entries is greater than the first dimension of tensor: "
            f"{numbers} make {sum(numbers)} rows, the tensor has {rows}."
        )
    return numbers


def _numbers(splits: Splits) -> list[int]:
    if isinstance(splits, torch.Tensor):
        if splits.dim() != 1:
            raise InvalidRequestError(
                f"alltoall expects a 1D splits tensor, but this one has shape {list(splits.shape)}."
            )
        if splits.dtype != torch.int32:
            raise InvalidRequestError(
                "alltoall expects splits to contain 32-bit integer elements, "
                f"but these are {splits.dtype}. Pass splits.to(torch.int32), or a list."
            )
        return splits.tolist()
    try:
        return [operator.index(split) for split in splits]
    except TypeError:
        raise InvalidRequestError(
            f"alltoall expects a 1D splits tensor with 32-bit integer elements, or a list of whole numbers, "
            f"but got {splits!r}."
        ) from None


def _member(session: Session, group: int, name: str, tensor: torch.Tensor, splits: Splits | None, size: int) -> Member:
    """Exchange rows. The result is the rows received, in rank order, and how many came from each rank."""
    dtype = native_dtype(tensor)
    if tensor.dim() == 0:
        raise InvalidRequestError(
            f"{name}: a tensor without dimensions (a rank-zero tensor) has no rows to exchange. Pass tensor.reshape(1)."
        )
    rows = rows_to_send(splits, tensor.shape[0], size)
    host, event = to_host(tensor)
    request = make_request(
        Kind.ALLTOALL, name, dtype=dtype, group=group, shape=tensor.shape, input=host.data_ptr(), splits=rows
    )
    device = splits.device if isinstance(splits, torch.Tensor) else "cpu"

    def finish(handle: int, _: torch.Tensor = host) -> tuple[torch.Tensor, torch.Tensor]:
        # `host` is held: the engine reads it until now.
        output, received_rows = received(session, handle, tensor)
        fits = max(received_rows) <= torch.iinfo(torch.int32).max
        return output, torch.tensor(received_rows, dtype=torch.int32 if fits else torch.int64, device=device)

    return request, event, finish


def _call(
    session: Session, group: int, name: str, tensor: torch.Tensor, splits: Splits | None, process_set: ProcessSet
) -> Call:
    return call_of_one(session, _member(session, group, name, tensor, splits, len(process_set.ranks)))


def alltoall(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Give rows of the tensor to every rank of a process set, and return those that all ranks gave to this one.

    Differentiable: gradients go back the way the rows came; rows that were not sent have zero.

    Args:
        tensor: contiguous; ranks may differ in the first dimension only.
        splits: how many rows go to each rank, in rank order; whatever is left over is not sent. A 1-D tensor of int32
            or a list. None gives equally many to each, which the first dimension must allow.
        name: ranks' calls match by name; unnamed calls match by their order.
        process_set: which ranks take part.

    Returns:
        Without splits, the rows received, in rank order. With splits, a pair of them and of `received_splits`: how
        many rows came from each rank, int32 (int64 if a number does not fit), on the device of `splits`.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' tensors do not fit together, or a worker was lost.
    """
    if tracked(tensor):
        output, received_splits = _Alltoall.apply(tensor, splits, name, process_set)
    else:
        output, received_splits = now("alltoall", name, process_set, _call, tensor, splits, process_set)
    return output if splits is None else (output, received_splits)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an `alltoall` and return a handle, for which `synchronize` gives (rows, received splits) in any case."""
    return later("alltoall", name, process_set, _call, tensor, splits, process_set)


class _Alltoall(torch.autograd.Function):
    """Gradient: the rows' gradients, sent back to where the rows came from."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Splits | None, name: str | None, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, received_splits = now("alltoall", name, process_set, _call, tensor, splits, process_set)
        ctx.how = received_splits.tolist(), tensor.shape[0], process_set
        ctx.mark_non_differentiable(received_splits)
        return output, received_splits

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> Any:
        splits, rows, process_set = ctx.how
        returned, _ = alltoall(gradient.contiguous(), splits=splits, process_set=process_set)
        missing = rows - returned.shape[0]
        if missing:
            returned = torch.cat([returned, returned.new_zeros((missing, *returned.shape[1:]))])
        return returned, None, None, None
