"""Gives newcomers the state of a training, from the memory of the ranks that hold it.

All these ranks hold the same state, so each of them sends a part of it: the pieces are dealt out to the sources in
turn. Every receiver first learns from one of the sources what the pieces are; when all of them have come, it compares
their checksums with the senders'.
"""

from __future__ import annotations

import ctypes
import enum
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]
import torch

from farandole.core.basics import current
from farandole.core.dtype import DType, Kind
from farandole.core.handle import Pending
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.core.submission import Submission
from farandole.errors import HorovodInternalError

# Small enough that all sources have about the same to send, large enough that the number of pieces does not matter.
PIECE_BYTES = 4 << 20


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
    pieces = _pieces([_bytes_of(tensor) for tensor in map(ordinary, tensors)])
    if compare:
        wrong = _differing(session, pieces, sources, receivers)
        numbers: Sequence[int] = sorted({number for number, _ in wrong})
    else:
        numbers = range(len(pieces))
    _move(session, pieces, numbers, sources, receivers)
    if numbers or not compare:
        _check(session, pieces, sources, receivers)
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


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def _pieces(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return all bytes in pieces. What is smaller travels as it is."""
    return [
        tensor[begin : begin + PIECE_BYTES] for tensor in tensors for begin in range(0, tensor.numel(), PIECE_BYTES)
    ]


def _checksum(piece: torch.Tensor) -> int:
    return zlib.crc32((ctypes.c_char * piece.numel()).from_address(piece.data_ptr()))


def _source_of(piece: int, sources: Sequence[int]) -> int:
    return sources[piece % len(sources)]


def _move(
    session: Session,
    pieces: Sequence[torch.Tensor],
    numbers: Sequence[int],
    sources: Sequence[int],
    receivers: Sequence[int],
) -> None:
    rank = session.world.rank
    requests = [
        make_request(
            Kind.TRANSFER,
            f"elastic.state.{number}.{receiver}",
            dtype=DType.U8,
            shape=(pieces[number].numel(),),
            root=_source_of(number, sources),
            peer=receiver,
            input=pieces[number].data_ptr() if rank == _source_of(number, sources) else None,
            output=pieces[number].data_ptr() if rank == receiver else None,
        )
        for number in numbers
        for receiver in receivers
        if rank in (_source_of(number, sources), receiver)
    ]
    if requests:
        session.handles.run(Pending(session.engine, Submission(requests), lambda _: None))


def _check(session: Session, pieces: Sequence[torch.Tensor], sources: Sequence[int], receivers: Sequence[int]) -> None:
    """Compare what was received with what was sent.

    Raises:
        HorovodInternalError: on all ranks, if they differ on any.
    """
    wrong = _differing(session, pieces, sources, receivers)
    if wrong:
        number, receiver = wrong[0]
        raise HorovodInternalError(
            f"rank {receiver} did not receive what rank {_source_of(number, sources)} sent of the state: the checksum "
            f"of piece {number} differs, and so do those of {len(wrong) - 1} others"
        )


def _differing(
    session: Session, pieces: Sequence[torch.Tensor], sources: Sequence[int], receivers: Sequence[int]
) -> list[tuple[int, int]]:
    """Return which pieces are others on a receiver, by their checksums: the piece, and the receiver. A collective."""
    rank = session.world.rank
    own = [
        _checksum(piece) if rank in receivers or rank == _source_of(number, sources) else 0
        for number, piece in enumerate(pieces)
    ]
    everyone = [cloudpickle.loads(each) for each in session.exchange("elastic.checksums", cloudpickle.dumps(own))]
    return [
        (number, receiver)
        for number in range(max(map(len, everyone)))
        for receiver in receivers
        if everyone[receiver][number] != everyone[_source_of(number, sources)][number]
    ]
