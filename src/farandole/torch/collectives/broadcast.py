"""broadcast: every rank gets one rank's tensor."""

from __future__ import annotations

from typing import Any

import torch

from farandole.core.dtype import Average, Kind
from farandole.core.group import ProcessSet, global_process_set
from farandole.core.handle import Call, Known
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.torch.collectives.allreduce import allreduce
from farandole.torch.collectives.call import (
    Member,
    call_of_one,
    later,
    native_dtype,
    note_write,
    now,
    now_in_place,
    tracked,
)
from farandole.torch.staging import from_host, to_host


def _member(tensor: torch.Tensor, in_place: bool, root_rank: int, name: str, group: int) -> Member:
    """Replace a tensor by the root's, in place or in a new tensor, which is the result."""
    dtype = native_dtype(tensor)
    host, event = to_host(tensor)
    result = tensor if in_place else torch.empty_like(tensor, requires_grad=False)
    target = result if host is tensor else host
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

    def finish(_: int) -> torch.Tensor:
        from_host(target, result)
        if result is tensor:  # Also holds the input until the engine has read it.
            note_write(result)
        return result

    return request, event, finish


def _call(session: Session, group: int, name: str, tensor: torch.Tensor, in_place: bool, root_rank: int) -> Call:
    if session.only_arrived:
        # Scripts begin so, and what they get is replaced when the others' state comes.
        return Known(tensor if in_place else tensor.detach().clone())
    return call_of_one(session, _member(tensor, in_place, root_rank, name, group))


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return the root's tensor on every rank of a process set.

    Differentiable: the gradient is the average of the gradients on the root, and zero elsewhere.

    Args:
        tensor: contiguous, of the same shape and type on all ranks.
        root_rank: whose tensor; a rank in the world, also for a process set.
        name: ranks' calls match by name; unnamed calls match by their order.
        process_set: which ranks take part.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' tensors do not fit together, or a worker was lost.
    """
    if tracked(tensor):
        return _Broadcast.apply(tensor, root_rank, name, process_set)
    return now("broadcast", name, process_set, _call, tensor, False, root_rank)


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin a `broadcast` and return a handle for `synchronize`. Not differentiable."""
    return later("broadcast", name, process_set, _call, tensor, False, root_rank)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Give every rank the root's tensor, in place, and return it. See `broadcast`."""
    return now_in_place([tensor], "broadcast", name, process_set, _call, tensor, True, root_rank)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin a `broadcast_` and return a handle for `synchronize`."""
    return later("broadcast", name, process_set, _call, tensor, True, root_rank)


class _Broadcast(torch.autograd.Function):
    """Gradient: the average of the gradients on the root, zero elsewhere."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.how = root_rank, process_set
        return now("broadcast", name, process_set, _call, tensor, False, root_rank)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        root_rank, process_set = ctx.how
        averaged = allreduce(gradient.contiguous(), op=Average, process_set=process_set)
        is_root = process_set.ranks[process_set.rank()] == root_rank
        return (averaged if is_root else torch.zeros_like(averaged)), None, None, None
