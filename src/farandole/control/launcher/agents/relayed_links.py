"""The launcher's end of the relay from workers on other hosts to the roster (see
`farandole.control.agent.roster_relay`).

The frames by which a roster announces a world end with the same long table for all workers. An agent gets the table
once for all workers of its host: the end of a long frame that was sent to it is not sent again if the next long frame
ends in the same way. This is seen from the bytes alone. The frames are not decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farandole.base.wire.address import parse_address
from farandole.base.wire.frames import LARGEST_FRAME, LENGTH_BYTES, frame_length
from farandole.control.agent.protocol import (
    WINDOW,
    Relay,
    RelayClosed,
    RelayCredit,
    Relayed,
    RelayedAgain,
    RelayOpened,
    ToAgent,
)
from farandole.control.launcher.background import Background

_CHUNK = 64 * 1024
_WHOLE = 4 * 1024 * 1024
"""Length in bytes of the longest frame that is passed on as a whole, which bounds the memory of both ends."""
_OWN = 256
"""Number of bytes at the beginning of a frame that may be its own, such as the numbers of a worker."""
_GRAIN = 1024
"""The end of a frame that may be repeated is a multiple of this length, in bytes: the beginnings of the frames of one
world differ a little in length."""


class LatestEnd:
    """The latest end of a frame that an agent of this launcher keeps. The agents of a job get the same tables, so one
    copy serves all of them."""

    def __init__(self) -> None:
        self._end = b""

    def of(self, frame: bytes, length: int) -> bytes:
        """Return the last `length` bytes of a frame; the same object as for the previous frame if they are equal."""
        if not _ends_with(frame, length, self._end):
            self._end = frame[-length:]
        return self._end


class KeptEnd:
    """The end of a frame that an agent keeps, and that need not be sent to it again.

    Args:
        latest: shared by all agents of a job.
    """

    def __init__(self, latest: LatestEnd) -> None:
        self._latest = latest
        self._end = b""

    def message(self, link: int, frame: bytes) -> Relayed | RelayedAgain:
        """Return the shortest message by which the agent gets a frame for one of its connections."""
        length = max(0, len(frame) - _OWN) // _GRAIN * _GRAIN
        if length and _ends_with(frame, length, self._end):
            return RelayedAgain(link, frame[:-length])
        if length:
            self._end = self._latest.of(frame, length)
        return Relayed(link, frame, kept=length)


def _ends_with(frame: bytes, length: int, end: bytes) -> bool:
    return length == len(end) and frame.endswith(end)


class RelayedLinks:
    """The connections that come through one agent. Everything runs in the loop's thread.

    Args:
        roster: host:port of the roster.
        send: sends messages to the agent.
        latest: shared by all agents of the job.
    """

    def __init__(self, roster: str, send: Callable[[ToAgent], None], latest: LatestEnd) -> None:
        self._host, self._port = parse_address(roster)
        self._send = send
        self._links: dict[int, _Link] = {}
        self._background = Background()
        self._kept = KeptEnd(latest)

    def handle(self, message: RelayOpened | Relay) -> None:
        """Handle an agent's message about a connection, which may already be over."""
        if isinstance(message, RelayOpened):
            link = self._links[message.link] = _Link(message.link)
            self._background.spawn(self._serve(link))
            return
        known = self._links.get(message.link)
        if known is None:
            return
        if isinstance(message, RelayCredit):
            known.ahead -= message.count
            known.credited.set()
        elif isinstance(message, Relayed):
            known.coming.put_nowait(message.data)
        else:
            known.end()

    async def close(self) -> None:
        """Close all connections."""
        await self._background.end()

    async def _serve(self, link: _Link) -> None:
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            self._forget(link)
            return
        upward = self._background.spawn(self._pass_up(link, writer))
        try:
            await self._pass_down(link, reader)
        except OSError:
            pass  # The roster has closed the connection.
        finally:
            upward.cancel()
            writer.close()
            self._forget(link)

    async def _pass_up(self, link: _Link, writer: asyncio.StreamWriter) -> None:
        """Pass data from the worker to the roster."""
        try:
            while data := await link.coming.get():
                writer.write(data)
                await writer.drain()
                self._send(RelayCredit(link.number, len(data)))
        except OSError:
            return
        # The worker has closed its end. The roster still gets its last data: close() flushes.
        writer.close()

    async def _pass_down(self, link: _Link, reader: asyncio.StreamReader) -> None:
        """Pass data from the roster to the worker, frame by frame."""
        try:
            while True:
                header = await reader.readexactly(LENGTH_BYTES)
                length = frame_length(header, LARGEST_FRAME)
                whole = length if length <= _WHOLE else 0
                await self._pass_frame(link, header + await reader.readexactly(whole))
                await self._pass_chunks(link, reader, length - whole)
        except asyncio.IncompleteReadError:
            return  # The roster has closed the connection. What remains of a frame is of no use to the worker.

    async def _pass_frame(self, link: _Link, frame: bytes) -> None:
        """Pass on a whole frame, or the beginning of a very long one."""
        link.ahead += len(frame)
        self._send(self._kept.message(link.number, frame))
        await link.has_room()

    async def _pass_chunks(self, link: _Link, reader: asyncio.StreamReader, length: int) -> None:
        while length:
            data = await reader.readexactly(min(length, _CHUNK))
            length -= len(data)
            link.ahead += len(data)
            self._send(Relayed(link.number, data))
            await link.has_room()

    def _forget(self, link: _Link) -> None:
        del self._links[link.number]
        self._send(RelayClosed(link.number))


class _Link:
    def __init__(self, number: int) -> None:
        self.number = number
        self.ahead = 0
        """Number of sent bytes that the agent has not passed on yet."""
        self.credited = asyncio.Event()
        self.coming: asyncio.Queue[bytes] = asyncio.Queue()
        """Data from the worker, bounded by the agent's window; empty bytes: the worker has closed its end."""
        self._is_over = False

    def end(self) -> None:
        """Record that the worker has closed its end. The agent passes nothing on any more, and gives no more credit."""
        self._is_over = True
        self.coming.put_nowait(b"")
        self.credited.set()

    async def has_room(self) -> None:
        """Wait until the agent has passed on enough for more to be sent, or the worker has closed its end."""
        while self.ahead >= WINDOW and not self._is_over:
            self.credited.clear()
            await self.credited.wait()
