"""Sends newcomers the state while training continues, a part between any two steps.

A newcomer takes the steps with the others, with the same reduced gradients (see `farandole.worker.elastic.shadows`). A
*part* is a parameter with its optimizer state, which change in a step only by their own values and the gradient. So a
part that has arrived stays equal to the others'. It is copied between two steps, and sent during the next one; tensors
of GPUs are copied there, and sent from there, if every rank that takes part has one.

Other state (of an optimizer that uses several parameters at once, buffers, averages of weights that began earlier)
becomes outdated. Therefore all parts are compared at the end, by checksums. Parts that differ are sent again, together
with everything that does not belong to a part, while all ranks wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]
import torch

from farandole.base.request_kind import Kind
from farandole.errors import FarandoleError
from farandole.torch.collectives.tensors import FRONT
from farandole.torch.elastic.transfer import OWN, gpu_types, load_state, shared_types, transfer
from farandole.torch.skeleton import Place, Skeleton, take_apart
from farandole.worker.core.basics import current
from farandole.worker.core.dtype import DType
from farandole.worker.core.handle import Pending
from farandole.worker.core.request import make_request
from farandole.worker.core.submission import Submission

# How much is sent in one step: at least this much, and this much for each second that a step takes. To copy it takes
# about a tenth of the step.
_LEAST_BYTES = 4 << 20
_BYTES_PER_SECOND = 128 << 20
# Each tensor begins at a multiple of this, which is enough for the alignment of every element type.
_ALIGNMENT = 16


class _Part(NamedTuple):
    """The name of a part: where its parameter and optimizer state are."""

    places: tuple[tuple[str, str], ...]
    """The places of the parameter: an object's name, and the key in its `state_dict`. Several if it is tied."""
    optimizer: str
    number: int
    """The parameter's number in the optimizer's state; 0, with `optimizer` "", if it is not optimized."""


class _PartState(NamedTuple):
    """A part at present, without the values of its tensors."""

    number: int
    skeleton: Skeleton
    """The skeleton of the parameter and its state."""

    @property
    def nbytes(self) -> list[int]:
        """The sizes of its tensors, in bytes."""
        return [place.nbytes for place in self.skeleton.places]


class _Flight(NamedTuple):
    """Parts that are being sent from one source to one receiver."""

    call: int
    parts: list[_PartState]
    buffers: dict[str, torch.Tensor]
    """The buffers by type of device; "cpu" is for all tensors that are not sent between GPUs."""


def begin(things: Mapping[str, Any], sources: Sequence[int], receivers: Sequence[int], at_once: int) -> Stream | None:
    """Send receivers the state of objects; return a stream if most of it is sent later. A collective of the world.

    Args:
        things: the objects by name; the same ones on all ranks.
        sources: ranks that have the state.
        receivers: ranks that need it.
        at_once: the largest state, in bytes, that is sent at once; the first source's value is used.

    Returns:
        The stream that sends the rest, if there is any.

    Raises:
        HorovodInternalError: a worker was lost, or the received data differ from those sent.
    """
    session = current()
    parts: list[_Part] = []
    if session.world.rank == sources[0]:
        now = _States(things)
        parts = _parts_of(things, now)
        large = sum(sum(now.part(parts, number)[0].nbytes) for number in range(len(parts))) > at_once
        parts = parts if large else []
    told = session.exchange("elastic.parts", cloudpickle.dumps((gpu_types(), parts)))
    said = {each: cloudpickle.loads(told[each]) for each in (*sources, *receivers)}
    _, parts = said[sources[0]]
    if not parts:
        transfer(things, sources, receivers)
        return None

    def leave_out(states: dict[str, Any]) -> None:
        for part in parts:
            for name, key in part.places:
                states[name][key] = OWN
            if part.optimizer:
                states[part.optimizer]["state"].pop(part.number, None)

    transfer(things, sources, receivers, leave_out=leave_out)
    return Stream(things, parts, sources, receivers, shared_types([types for types, _ in said.values()]))


class Stream:
    """Sends the state to newcomers in parts: `worker.elastic.framework.Stream` for PyTorch."""

    def __init__(
        self,
        things: Mapping[str, Any],
        parts: Sequence[_Part],
        sources: Sequence[int],
        receivers: Sequence[int],
        shared: Collection[str],
    ) -> None:
        """Create a stream of parts; `shared` are the types of devices between which tensors can be sent directly."""
        self._things = things
        self._parts = parts
        self._sources = sources
        self._receivers = receivers
        self._shared = shared
        self._session = current()
        self._sent = 0
        """The number of parts that have been sent."""
        self._turns = 0
        self._flights: list[_Flight] = []

    def send_some(self, seconds: float) -> bool:
        rank = self._session.world.rank
        if rank not in self._receivers:
            self._wait()
        if self._sent == len(self._parts):
            return True
        now = _States(self._things)
        chosen = self._choose(now, seconds) if rank == self._sources[0] else []
        told = self._session.exchange("elastic.part", cloudpickle.dumps(chosen))
        chosen = cloudpickle.loads(told[self._sources[0]])
        self._sent += len(chosen)
        self._turns += 1
        for source, parts in zip(self._sources, _divided(chosen, len(self._sources)), strict=True):
            for receiver in self._receivers:
                if parts and rank in (source, receiver):
                    self._begin(now, source, receiver, parts)
        return False

    def take(self) -> None:
        if self._session.world.rank in self._receivers:
            for flight in self._wait():
                self._store(flight)

    def finish(self) -> None:
        # First store the parts that were sent since the last step: at the end of an epoch, no step has done this.
        self.take()
        self._wait()
        transfer(self._things, self._sources, self._receivers, compare=True)

    def abandon(self) -> None:
        with suppress(FarandoleError):
            self._wait()

    def _choose(self, now: _States, seconds: float) -> list[_PartState]:
        room = max(_LEAST_BYTES, int(seconds * _BYTES_PER_SECOND))
        chosen: list[_PartState] = []
        while room > 0 and self._sent + len(chosen) < len(self._parts):
            said, _ = now.part(self._parts, self._sent + len(chosen))
            room -= sum(said.nbytes)
            chosen.append(said)
        return chosen

    def _begin(self, now: _States, source: int, receiver: int, parts: list[_PartState]) -> None:
        is_source = self._session.world.rank == source
        buffers = {kind: torch.empty(size, dtype=torch.uint8, device=kind) for kind, size in self._sizes(parts).items()}
        if is_source:
            tensors = [tensor for part in parts for tensor in now.part(self._parts, part.number)[1]]
            for room, tensor in zip(self._split(buffers, parts), tensors, strict=True):
                room.copy_(tensor.detach())
        requests = [
            make_request(
                Kind.TRANSFER,
                f"elastic.part.{self._turns}.{source}.{receiver}.{kind}",
                dtype=DType.U8,
                shape=(buffer.numel(),),
                root=source,
                peer=receiver,
                input=buffer.data_ptr() if is_source else None,
                output=None if is_source else buffer.data_ptr(),
                stream=FRONT.stream_of(buffer),
            )
            for kind, buffer in buffers.items()
        ]
        # The function holds the buffers, which must live until the call is done.
        call = Pending(self._session.engine, Submission(requests), lambda _, buffers=buffers: None)  # type: ignore[misc]
        self._flights.append(_Flight(self._session.handles.begin(call), parts, buffers))

    def _kind(self, place: Place) -> str:
        return place.device if place.device in self._shared else "cpu"

    def _sizes(self, parts: Sequence[_PartState]) -> dict[str, int]:
        """Return the sizes of the buffers in bytes, by the types of their devices."""
        sizes: dict[str, int] = {}
        for place in _places_of(parts):
            kind = self._kind(place)
            sizes[kind] = sizes.get(kind, 0) + _room(place)
        return {kind: size for kind, size in sizes.items() if size}

    def _split(self, buffers: Mapping[str, torch.Tensor], parts: Sequence[_PartState]) -> Iterator[torch.Tensor]:
        """Yield the parts' tensors, which are in the buffers."""
        begins: dict[str, int] = {}
        for place in _places_of(parts):
            kind = self._kind(place)
            begin = begins.get(kind, 0)
            begins[kind] = begin + _room(place)
            room = buffers[kind][begin : begin + place.nbytes] if place.nbytes else torch.empty(0, dtype=torch.uint8)
            yield room.view(place.dtype).view(place.shape)

    def _wait(self) -> list[_Flight]:
        """Wait for all parts in flight; then raise the first error, if any."""
        arrived, self._flights = self._flights, []
        error: Exception | None = None
        for flight in arrived:
            try:
                self._session.handles.synchronize(flight.call)
            except FarandoleError as this:
                error = error or this
        if error is not None:
            raise error
        return arrived

    def _store(self, flight: _Flight) -> None:
        """Store received parts in a newcomer's objects."""
        tensors = self._split(flight.buffers, flight.parts)
        came: dict[str, dict[int, Any]] = {}
        own = {name: thing.state_dict() for name, thing in self._things.items() if isinstance(thing, torch.nn.Module)}
        for said in flight.parts:
            part = self._parts[said.number]
            places = said.skeleton.places
            value, state = said.skeleton.with_tensors([each.on_own_device(next(tensors).clone()) for each in places])
            with torch.no_grad():
                for name, key in part.places:
                    own[name][key].copy_(value)
            if state is not None:
                came.setdefault(part.optimizer, {})[part.number] = state
        for name, states in came.items():
            optimizer = self._things[name]
            before = optimizer.state_dict()
            load_state(optimizer, {**before, "state": {**before["state"], **states}})


class _States:
    """The objects' states between two steps."""

    def __init__(self, things: Mapping[str, Any]) -> None:
        self.states = {
            name: thing.state_dict()
            for name, thing in things.items()
            if isinstance(thing, (torch.nn.Module, torch.optim.Optimizer))
        }

    def part(self, parts: Sequence[_Part], number: int) -> tuple[_PartState, list[torch.Tensor]]:
        """Return a part, and its tensors."""
        part = parts[number]
        name, key = part.places[0]
        state = self.states[part.optimizer]["state"].get(part.number) if part.optimizer else None
        skeleton, tensors = take_apart((self.states[name][key], state))
        return _PartState(number, skeleton), tensors


def _parts_of(things: Mapping[str, Any], now: _States) -> list[_Part]:
    """Return all parts: those in an optimizer first, because others may depend on them."""
    places: dict[int, list[tuple[str, str]]] = {}
    for name, thing in things.items():
        if isinstance(thing, torch.nn.Module):
            for key, value in now.states[name].items():
                if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel():
                    places.setdefault(value.data_ptr(), []).append((name, key))
    parts = []
    for name, thing in things.items():
        if isinstance(thing, torch.optim.Optimizer):
            parameters = [parameter for group in thing.param_groups for parameter in group["params"]]
            for number, parameter in enumerate(parameters):
                found = places.pop(parameter.data_ptr(), [])
                if found:
                    parts.append(_Part(tuple(found), name, number))
    return parts + [_Part(tuple(found), "", 0) for found in places.values()]


def _divided(chosen: Sequence[_PartState], count: int) -> list[list[_PartState]]:
    """Divide parts among a number of sources, so that each has about the same amount to send."""
    divided: list[list[_PartState]] = [[] for _ in range(count)]
    nbytes = [0] * count
    for part in chosen:
        source = nbytes.index(min(nbytes))
        divided[source].append(part)
        nbytes[source] += sum(part.nbytes)
    return divided


def _places_of(parts: Sequence[_PartState]) -> list[Place]:
    return [place for part in parts for place in part.skeleton.places]


def _room(place: Place) -> int:
    """Return the number of bytes that a tensor takes in a buffer."""
    return -(-place.nbytes // _ALIGNMENT) * _ALIGNMENT
