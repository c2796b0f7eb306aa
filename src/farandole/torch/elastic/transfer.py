"""Gives newcomers the state of a training, from the memory of the ranks that hold it.

Every receiver first learns from one of the sources what there is; then the bytes of all tensors travel (see
`farandole.elastic.pieces`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]
import torch

from farandole.core.basics import current
from farandole.elastic.pieces import give, pieces_of


class Hole(NamedTuple):
    """Stands for a tensor of the state."""

    number: int
    dtype: torch.dtype
    shape: torch.Size

    @property
    def nbytes(self) -> int:
        """Of the tensor."""
        return self.shape.numel() * self.dtype.itemsize


class _Own(enum.Enum):
    OWN = enum.auto()


OWN = _Own.OWN
"""Stands for what the receiver has there."""


def transfer(
    things: Mapping[str, Any],
    sources: Sequence[int],
    receivers: Sequence[int],
    *,
    leave_out: Callable[[dict[str, Any]], None] | None = None,
    compare: bool = False,
) -> None:
    """Give receivers the state of things that have a `state_dict` and can load one. A collective of the world.

    Args:
        things: by name; the same ones on all ranks.
        sources: ranks that hold the state.
        receivers: ranks that are to get it.
        leave_out: puts `OWN` into a state, by name, or takes away what may be missing there.
        compare: send only what receivers do not have already.

    Raises:
        HorovodInternalError: a worker was lost, or what has come is not what was sent.
    """
    session = current()
    rank = session.world.rank
    tensors: list[torch.Tensor] = []
    skeleton = b""
    if rank in sources:
        states = {name: thing.state_dict() for name, thing in things.items()}
        if leave_out is not None:
            leave_out(states)
        taken = take_out(states, tensors)
        skeleton = cloudpickle.dumps(taken) if rank == sources[0] else b""
    skeletons = session.exchange("elastic.skeleton", skeleton)
    if rank in receivers:
        own = {name: thing.state_dict() for name, thing in things.items()} if leave_out or compare else None
        states = fill_in(cloudpickle.loads(skeletons[sources[0]]), tensors, own, begin_with_own=compare)
    # Until `give` has returned, `held` keeps alive what the pieces are in.
    held = list(map(ordinary, tensors))
    pieces = pieces_of((tensor.data_ptr(), tensor.numel() * tensor.element_size()) for tensor in held)
    give(session, pieces, sources, receivers, compare=compare)
    if rank in receivers:
        for name, thing in things.items():
            thing.load_state_dict(states[name])


def take_out(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return a state without its tensors, which are put into the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return Hole(len(tensors) - 1, value.dtype, value.shape)
    if isinstance(value, Mapping):
        return {key: take_out(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(take_out(each, tensors) for each in value)
    return value


def fill_in(value: Any, tensors: list[torch.Tensor], own: Any = None, *, begin_with_own: bool = False) -> Any:
    """Return a state with tensors, which are put into the list, where the others' were.

    Args:
        value: the state without them.
        tensors: as `take_out` has found them.
        own: the state here.
        begin_with_own: take those tensors of it that can be written to; the others are new.
    """
    if value is OWN:
        return own
    if isinstance(value, Hole):
        assert value.number == len(tensors)
        tensors.append(_room_for(value, own if begin_with_own else None))
        return tensors[-1]
    if isinstance(value, dict):
        theirs = own if isinstance(own, Mapping) else {}
        return {
            key: fill_in(each, tensors, theirs.get(key), begin_with_own=begin_with_own) for key, each in value.items()
        }
    if type(value) in (list, tuple):
        found = own if type(own) is type(value) and len(own) == len(value) else [None] * len(value)
        return type(value)(
            fill_in(each, tensors, mine, begin_with_own=begin_with_own) for each, mine in zip(value, found, strict=True)
        )
    return value


def _room_for(hole: Hole, own: Any) -> torch.Tensor:
    if isinstance(own, torch.Tensor) and (own.dtype, own.shape) == (hole.dtype, hole.shape) and not own.is_sparse:
        return ordinary(own.detach())
    return torch.empty(hole.shape, dtype=hole.dtype)


def ordinary(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor densely in ordinary memory; a parameter itself is not copied."""
    return tensor.cpu().contiguous()
