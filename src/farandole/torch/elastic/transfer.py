"""Gives newcomers the state of a training, from the memory of those who hold it.

All of them hold the same, so each sends a part: pieces go round over the sources. What the parts are, every receiver
learns first, from one of the sources; when all pieces have come, it compares their checksums with the senders'.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]
import torch

from farandole.core.basics import current
from farandole.core.dtype import DType, Kind
from farandole.core.errors import HorovodInternalError
from farandole.core.handle import Pending
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.core.submission import Submission

# Small enough that all sources have about the same to send, large enough that the number of pieces does not matter.
PIECE_BYTES = 4 << 20


class _Hole(NamedTuple):
    """Stands for a tensor of the state."""

    number: int
    dtype: torch.dtype
    shape: torch.Size


def transfer(things: Mapping[str, Any], sources: Sequence[int], receivers: Sequence[int]) -> None:
    """Give receivers the state of things that have a `state_dict` and can load one. A collective of the world.

    Args:
        things: by name; the same ones on all ranks.
        sources: ranks that hold the state.
        receivers: ranks that are to get it.

    Raises:
        HorovodInternalError: a worker was lost, or what has come is not what was sent.
    """
    session = current()
    rank = session.world.rank
    tensors: list[torch.Tensor] = []
    skeleton = b""
    if rank in sources:
        states = {name: thing.state_dict() for name, thing in things.items()}
        taken = _take_out(states, tensors)
        skeleton = cloudpickle.dumps(taken) if rank == sources[0] else b""
    skeletons = session.exchange("elastic.skeleton", skeleton)
    if rank in receivers:
        states = _fill_in(cloudpickle.loads(skeletons[sources[0]]), tensors)
    pieces = _pieces([_bytes_of(tensor) for tensor in tensors])
    _move(session, pieces, sources, receivers)
    _check(session, pieces, sources, receivers)
    if rank in receivers:
        for name, thing in things.items():
            thing.load_state_dict(states[name])


def _take_out(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return a state without its tensors, which are put into the list."""
    if isinstance(value, torch.Tensor):
        # Sent from ordinary memory, densely; a parameter itself is not copied.
        tensors.append(value.detach().cpu().contiguous())
        return _Hole(len(tensors) - 1, value.dtype, value.shape)
    if isinstance(value, Mapping):
        return {key: _take_out(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_take_out(each, tensors) for each in value)
    return value


def _fill_in(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return a state with new tensors, which are put into the list, where the others' were."""
    if isinstance(value, _Hole):
        assert value.number == len(tensors)
        tensors.append(torch.empty(value.shape, dtype=value.dtype))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _fill_in(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_fill_in(each, tensors) for each in value)
    return value


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


def _move(session: Session, pieces: Sequence[torch.Tensor], sources: Sequence[int], receivers: Sequence[int]) -> None:
    rank = session.world.rank
    requests = [
        make_request(
            Kind.TRANSFER,
            f"elastic.state.{number}.{receiver}",
            dtype=DType.U8,
            shape=(piece.numel(),),
            root=_source_of(number, sources),
            peer=receiver,
            input=piece.data_ptr() if rank == _source_of(number, sources) else None,
            output=piece.data_ptr() if rank == receiver else None,
        )
        for number, piece in enumerate(pieces)
        for receiver in receivers
        if rank in (_source_of(number, sources), receiver)
    ]
    if requests:
        session.handles.run(Pending(session.engine, Submission(requests), lambda _: None))


def _check(session: Session, pieces: Sequence[torch.Tensor], sources: Sequence[int], receivers: Sequence[int]) -> None:
    """Compare the checksums of what was received with the senders'.

    Raises:
        HorovodInternalError: on all ranks, if they differ on any.
    """
    rank = session.world.rank
    own = [
        _checksum(piece) if rank in receivers or rank == _source_of(number, sources) else 0
        for number, piece in enumerate(pieces)
    ]
    everyone = [cloudpickle.loads(each) for each in session.exchange("elastic.checksums", cloudpickle.dumps(own))]
    wrong = [
        (number, receiver)
        for number in range(max(map(len, everyone)))
        for receiver in receivers
        if everyone[receiver][number] != everyone[_source_of(number, sources)][number]
    ]
    if wrong:
        number, receiver = wrong[0]
        raise HorovodInternalError(
            f"rank {receiver} did not receive what rank {_source_of(number, sources)} sent of the state: the checksum "
            f"of piece {number} differs, and so do those of {len(wrong) - 1} others"
        )
