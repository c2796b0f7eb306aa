"""Gives newcomers the state of a training, from the memory of the ranks that hold it.

Every receiver first learns from one of the sources what there is; then the bytes of all tensors travel (see
`farandole.worker.elastic.pieces`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch

from farandole.torch.optimizer_state import load_in_place
from farandole.torch.skeleton import Place, Skeleton, take_apart, tensors_by_path
from farandole.worker.core.basics import current
from farandole.worker.elastic.pieces import give, pieces_of


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
        things: the objects by name; the same ones on all ranks.
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
    told = b""
    if rank in sources:
        states = {name: thing.state_dict() for name, thing in things.items()}
        if leave_out is not None:
            leave_out(states)
        skeleton, tensors = take_apart(states)
        if rank == sources[0]:
            told = cloudpickle.dumps((skeleton, _paths(states, tensors) if compare else {}))
    told = session.exchange("elastic.skeleton", told)[sources[0]]
    if rank in receivers:
        skeleton, paths = cloudpickle.loads(told)
        own = {name: thing.state_dict() for name, thing in things.items()} if leave_out or compare else {}
        here = tensors_by_path(own) if compare else {}
        tensors = [_room_for(place, here.get(paths.get(number))) for number, place in enumerate(skeleton.places)]
    # Until `give` has returned, `held` keeps alive what the pieces are in.
    held = list(map(ordinary, tensors))
    pieces = pieces_of((tensor.data_ptr(), tensor.numel() * tensor.element_size()) for tensor in held)
    give(session, pieces, sources, receivers, compare=compare)
    if rank in receivers:
        _load(things, skeleton, held, own)


def _paths(states: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> dict[int, tuple[Any, ...]]:
    """Return where tensors are in nested states, by number; those in other containers are left out."""
    numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
    return {numbers[id(each)]: path for path, each in tensors_by_path(states).items() if id(each) in numbers}


def _room_for(place: Place, own: Any) -> torch.Tensor:
    if isinstance(own, torch.Tensor) and (own.dtype, own.shape) == (place.dtype, place.shape) and not own.is_sparse:
        return ordinary(own.detach())
    return torch.empty(place.shape, dtype=place.dtype)


def _load(
    things: Mapping[str, Any], skeleton: Skeleton, tensors: Sequence[torch.Tensor], own: Mapping[str, Any]
) -> None:
    placed = [place.on_own_device(tensor) for place, tensor in zip(skeleton.places, tensors, strict=True)]
    states = skeleton.with_tensors(placed)
    for name, thing in things.items():
        state = states[name]
        if name in own and isinstance(state, dict):
            for key, value in state.items():
                if value is OWN:
                    state[key] = own[name][key]
        load_state(thing, state)


def load_state(thing: Any, state: Any) -> None:
    """Let a thing have a state that its `state_dict` returned elsewhere."""
    if isinstance(thing, torch.optim.Optimizer):
        load_in_place(thing, state)
    else:
        thing.load_state_dict(state)


def ordinary(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in contiguous host memory. Data that is there already is not copied."""
    return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
