"""Memory that ranks send to others of their world: divided into pieces, assigned to the ranks that have it, and
compared.

All sources have the same bytes, so each of them sends a part: the pieces are assigned to them in turn. Pieces in a
GPU's memory are sent directly to another GPU's or, if the engine cannot do this, through host memory.
"""

from __future__ import annotations

import ctypes
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from farandole.base.request_kind import Kind
from farandole.errors import HorovodInternalError
from farandole.worker.core.binding import NativeRequest
from farandole.worker.core.dtype import DType
from farandole.worker.core.gpu_stream import GpuStream
from farandole.worker.core.handle import Pending
from farandole.worker.core.request import make_request
from farandole.worker.core.session import Session
from farandole.worker.core.submission import Submission

# Small enough that all sources have about the same to send, large enough that the number of pieces does not matter.
PIECE_BYTES = 4 << 20
# So many pieces in the memory of GPUs are on their way at once, in two halves: on the way through host memory, each
# needs as much pinned memory.
GPU_PIECES = 16


class Piece(NamedTuple):
    """A block of this rank's memory, which the piece's creator keeps alive.

    Attributes:
        address: the address of its first byte.
        nbytes: its size in bytes.
        stream: for a GPU's memory, the stream in which it is computed and used; None for host memory.
        checksum: for a GPU's memory, a function that returns its checksum, which is the same on each rank for the same
            bytes.
    """

    address: int
    nbytes: int
    stream: GpuStream | None = None
    checksum: Callable[[], int] | None = None


def pieces_of(blocks: Iterable[tuple[int, int]]) -> list[Piece]:
    """Divide blocks of memory, each an address and a number of bytes, into pieces. Small blocks are not divided."""
    return [
        Piece(address + begin, min(PIECE_BYTES, nbytes - begin))
        for address, nbytes in blocks
        for begin in range(0, nbytes, PIECE_BYTES)
    ]


def give(
    session: Session,
    pieces: Sequence[Piece],
    sources: Sequence[int],
    receivers: Sequence[int],
    *,
    compare: bool = False,
) -> None:
    """Copy the sources' pieces to the receivers. A collective of the world.

    Args:
        session: the session in whose world the pieces are sent.
        pieces: the pieces, of the same sizes on all sources and receivers; on other ranks they may be missing.
        sources: ranks that have the bytes.
        receivers: ranks that need them.
        compare: whether to send only the pieces that differ on the receivers.

    Raises:
        HorovodInternalError: a worker was lost, or the received bytes differ from those sent.
    """
    numbers: Sequence[int] = range(len(pieces))
    if compare:
        numbers = sorted({number for number, _ in _differing(session, pieces, sources, receivers)})
    _move(session, pieces, numbers, sources, receivers)
    if numbers or not compare:
        _check(session, pieces, sources, receivers)


def _source_of(piece: int, sources: Sequence[int]) -> int:
    return sources[piece % len(sources)]


def _move(
    session: Session,
    pieces: Sequence[Piece],
    numbers: Sequence[int],
    sources: Sequence[int],
    receivers: Sequence[int],
) -> None:
    rank = session.world.rank
    on_host: list[NativeRequest] = []
    on_gpu: list[NativeRequest] = []
    for number in numbers:
        piece, source = pieces[number], _source_of(number, sources)
        for receiver in receivers:
            if rank in (source, receiver):
                request = make_request(
                    Kind.TRANSFER,
                    f"elastic.state.{number}.{receiver}",
                    dtype=DType.U8,
                    shape=(piece.nbytes,),
                    root=source,
                    peer=receiver,
                    input=piece.address if rank == source else None,
                    output=piece.address if rank == receiver else None,
                    stream=piece.stream,
                )
                (on_host if piece.stream is None else on_gpu).append(request)
    half = GPU_PIECES // 2
    _run_in_turn(session, [on_host, *(on_gpu[begin : begin + half] for begin in range(0, len(on_gpu), half))])


def _run_in_turn(session: Session, parts: Iterable[Sequence[NativeRequest]]) -> None:
    """Submit the parts in order, two of them at a time, and wait for all that have been submitted.

    All ranks have their requests in the same order, so the first one that is not done has been submitted on both of its
    ranks: no request waits forever.
    """
    error: Exception | None = None
    in_flight: deque[int] = deque()

    def wait_for(most: int) -> None:
        nonlocal error
        while len(in_flight) > most:
            try:
                session.handles.synchronize(in_flight.popleft())
            except Exception as this:
                error = error or this

    for part in parts:
        if part and error is None:
            in_flight.append(session.handles.begin(Pending(session.engine, Submission(part), lambda _: None)))
            wait_for(1)
    wait_for(0)
    if error is not None:
        raise error


def _check(session: Session, pieces: Sequence[Piece], sources: Sequence[int], receivers: Sequence[int]) -> None:
    """Compare the received pieces with those sent.

    Raises:
        HorovodInternalError: they differ on some rank; raised on all ranks.
    """
    wrong = _differing(session, pieces, sources, receivers)
    if wrong:
        number, receiver = wrong[0]
        raise HorovodInternalError(
            f"rank {receiver} did not receive what rank {_source_of(number, sources)} sent of the state: the checksum "
            f"of piece {number} differs, and so do those of {len(wrong) - 1} others"
        )


def _differing(
    session: Session, pieces: Sequence[Piece], sources: Sequence[int], receivers: Sequence[int]
) -> list[tuple[int, int]]:
    """Return (piece, receiver) for the pieces whose checksums differ on a receiver. A collective."""
    rank = session.world.rank
    own = [
        _checksum(piece) if rank in receivers or rank == _source_of(number, sources) else 0
        for number, piece in enumerate(pieces)
    ]
    told = session.exchange("elastic.checksums", msgspec.msgpack.encode(own))
    everyone = [msgspec.msgpack.decode(each, type=list[int]) for each in told]
    return [
        (number, receiver)
        for number in range(max(map(len, everyone)))
        for receiver in receivers
        if everyone[receiver][number] != everyone[_source_of(number, sources)][number]
    ]


def _checksum(piece: Piece) -> int:
    if piece.checksum is not None:
        return piece.checksum()
    return zlib.crc32((ctypes.c_char * piece.nbytes).from_address(piece.address))
