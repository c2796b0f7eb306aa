"""Sends newcomers the state of a training, from the memory of the ranks that have it.

Every receiver first gets a description of the state from one of the sources; then the bytes of all tensors are sent
(see `farandole.worker.elastic.pieces`). Tensors of GPUs are sent from one GPU to the other, if every rank that takes
part has one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch

from farandole.torch.collectives.tensors import RAW_STREAMS, gpu_stream
from farandole.torch.optimizer_state import load_in_place
from farandole.torch.skeleton import Place, Skeleton, is_available, take_apart, tensors_by_path
from farandole.worker.core.basics import current
from farandole.worker.elastic.pieces import Piece, give, pieces_of


class _Own(enum.Enum):
    OWN = enum.auto()


OWN = _Own.OWN
"""A placeholder for the receiver's own value."""


def transfer(
    things: Mapping[str, Any],
    sources: Sequence[int],
    receivers: Sequence[int],
    *,
    leave_out: Callable[[dict[str, Any]], None] | None = None,
    compare: bool = False,
) -> None:
    """Send receivers the state of objects that have a `state_dict` and can load one. A collective of the world.

    Args:
        things: the objects by name; the same ones on all ranks.
        sources: ranks that have the state.
        receivers: ranks that need it.
        leave_out: a function that removes values from the states, given by name, or replaces them by `OWN`.
        compare: whether to send only the values that differ on the receivers.

    Raises:
        HorovodInternalError: a worker was lost, or the received data differ from those sent.
    """
    session = current()
    rank = session.world.rank
    tensors: list[torch.Tensor] = []
    message: tuple[Skeleton, dict[int, tuple[Any, ...]]] | None = None
    if rank in sources:
        states = {name: thing.state_dict() for name, thing in things.items()}
        if leave_out is not None:
            leave_out(states)
        skeleton, tensors = take_apart(states)
        if rank == sources[0]:
            message = skeleton, _paths(states, tensors)
    told = session.exchange("elastic.skeleton", cloudpickle.dumps((gpu_types(), message)))
    said = {each: cloudpickle.loads(told[each]) for each in (*sources, *receivers)}
    shared = shared_types([types for types, _ in said.values()])
    skeleton, paths = said[sources[0]][1]
    own: dict[str, Any] = {}
    if rank in receivers:
        if leave_out is not None or compare or any(place.device in shared for place in skeleton.places):
            own = {name: thing.state_dict() for name, thing in things.items()}
        here = tensors_by_path(own)
        tensors = [
            _room_for(place, here.get(paths.get(number)), shared, compare)
            for number, place in enumerate(skeleton.places)
        ]
    # Until `give` has returned, `held` keeps alive what the pieces are in.
    held = [_sendable(*each, shared) for each in zip(tensors, skeleton.places, strict=False)]
    pieces = [piece for tensor in held for piece in _pieces(tensor)]
    give(session, pieces, sources, receivers, compare=compare)
    if rank in receivers:
        _load(things, skeleton, held, own)


def gpu_types() -> list[str]:
    """Return the types of this process's devices from which the engine can send."""
    return [kind for kind in RAW_STREAMS if is_available(kind)]


def shared_types(told: Sequence[Collection[str]]) -> frozenset[str]:
    """Return the types of devices that all of these ranks have."""
    return frozenset(told[0]).intersection(*told[1:])


def _paths(states: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> dict[int, tuple[Any, ...]]:
    """Return the paths of tensors in nested states, by number; those in other containers are omitted."""
    numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
    return {numbers[id(each)]: path for path, each in tensors_by_path(states).items() if id(each) in numbers}


def _room_for(place: Place, own: Any, shared: Collection[str], compare: bool) -> torch.Tensor:
    """Return the memory that a tensor is received in.

    On a GPU it is the receiver's own tensor, if it has one: there may be no room for another.
    """
    on_gpu = place.device in shared
    is_alike = (
        isinstance(own, torch.Tensor)
        and (own.dtype, own.shape) == (place.dtype, place.shape)
        and own.layout is torch.strided
    )
    if is_alike and on_gpu and own.device.type == place.device and own.is_contiguous() and not own.is_neg():
        return own.detach()
    if is_alike and compare and not on_gpu:
        return ordinary(own.detach())
    return torch.empty(place.shape, dtype=place.dtype, device=place.device if on_gpu else "cpu")


def _sendable(tensor: torch.Tensor, place: Place, shared: Collection[str]) -> torch.Tensor:
    """Return a tensor in contiguous memory: of a GPU, if it is received on a GPU."""
    if place.device not in shared:
        return ordinary(tensor)
    return tensor.detach().to(place.device).contiguous().resolve_conj().resolve_neg()


def _pieces(tensor: torch.Tensor) -> Iterator[Piece]:
    pieces = pieces_of([(tensor.data_ptr(), tensor.numel() * tensor.element_size())])
    if tensor.is_cpu:
        yield from pieces
        return
    stream = gpu_stream(tensor.device)
    flat = _whole_numbers(tensor)
    begin = 0
    for piece in pieces:
        end = begin + piece.nbytes // flat.element_size()
        yield piece._replace(stream=stream, checksum=partial(_checksum, flat[begin:end]))
        begin = end


def _whole_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as one row of integers."""
    size = min(tensor.element_size(), 8)
    types = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(-1).view(types[size])


def _checksum(numbers: torch.Tensor) -> int:
    """Return the sum, modulo 2^64, of the numbers with a different weight for each position."""
    weights = torch.arange(1, 2 * numbers.numel(), 2, device=numbers.device)
    return int((numbers.to(torch.int64) * weights).sum())


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
    """Load a state that the `state_dict` of such an object has returned elsewhere."""
    if isinstance(thing, torch.optim.Optimizer):
        load_in_place(thing, state)
    else:
        thing.load_state_dict(state)


def ordinary(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in contiguous host memory. Data that is already there is not copied."""
    return tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
