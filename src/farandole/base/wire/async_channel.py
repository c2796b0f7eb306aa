"""Frames over asyncio streams, for the side that accepts connections, and for pipes."""

from __future__ import annotations

import asyncio

from farandole.base.wire.errors import BadMessage, ConnectionLost, WireError, WireTimeout
from farandole.base.wire.frames import FRAME_LIMIT, LENGTH_BYTES, frame, frame_header, frame_length
from farandole.base.wire.handshake import HANDSHAKE_LIMIT, HANDSHAKE_SECONDS, ServerHandshake

_FORGOTTEN_AT_ONCE = 1 << 16


class AsyncChannel:
    """Frames over asyncio streams: a socket, which needs `accept` first, or a pipe, which does not."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int = FRAME_LIMIT) -> None:
        self._reader = reader
        self._writer = writer
        self._limit = limit

    async def accept(self, secret: bytes, timeout: float = HANDSHAKE_SECONDS) -> None:
        """Do the server's side of the handshake. Close the channel if this raises.

        Raises:
            AuthenticationFailed: the client does not hold the secret, or does not use this protocol.
            WireTimeout: the client did not finish within `timeout` seconds.
        """
        limit, self._limit = self._limit, HANDSHAKE_LIMIT
        try:
            await asyncio.wait_for(self._accept(ServerHandshake(secret)), timeout)
        except (TimeoutError, asyncio.TimeoutError):
            raise WireTimeout(f"a client that did not prove itself within {timeout:g} s") from None
        self._limit = limit

    async def _accept(self, handshake: ServerHandshake) -> None:
        await self.send(handshake.challenge(await self.receive()))
        handshake.check(await self.receive())

    async def send(self, payload: bytes) -> None:
        """Send one frame, and wait while too much is unsent."""
        try:
            self._writer.write(frame(payload))
            await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error.strerror or error}") from None

    def post(self, payload: bytes, shared: bytes = b"") -> None:
        """Send one frame without waiting. Use it for small frames to a side that always reads.

        The frame is dropped if the connection is lost: `receive` reports that, perhaps after many more posts.

        Args:
            payload: the payload, or its beginning.
            shared: the rest of the payload, which is not copied: many frames may have the same one.
        """
        if self.is_closing():
            return  # asyncio would warn of each frame.
        self._writer.write(frame_header(len(payload) + len(shared)) + payload)
        if shared:
            self._writer.write(shared)

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or known to be lost, so that nothing can be sent."""
        return self._writer.transport.is_closing()

    def backlog(self) -> int:
        """Return the number of unsent bytes, which the other side has not read yet."""
        return self._writer.transport.get_write_buffer_size()

    async def skip_to(self, mark: bytes) -> None:
        """Discard everything up to and including a mark.

        Raises:
            BadMessage: the mark does not come within the stream's limit.
            ConnectionLost: the other side closed the connection before.
        """
        try:
            await self._reader.readuntil(mark)
        except asyncio.IncompleteReadError:
            raise ConnectionLost("the other side closed the connection") from None
        except asyncio.LimitOverrunError:
            raise BadMessage("the other side does not use this protocol") from None

    async def receive(self) -> bytes:
        """Wait for one frame and return its payload."""
        try:
            length = frame_length(await self._reader.readexactly(LENGTH_BYTES), self._limit)
            return await self._reader.readexactly(length)
        except asyncio.IncompleteReadError:
            raise ConnectionLost("the other side closed the connection") from None
        except WireError:
            raise
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error.strerror or error}") from None

    async def forget_the_rest(self) -> None:
        """Read and discard until the other side closes: asyncio detects the end of a stream only while reading."""
        try:
            while await self._reader.read(_FORGOTTEN_AT_ONCE):
                pass
        except OSError:
            return

    def close(self) -> None:
        """Close without waiting."""
        self._writer.close()

    async def closed(self) -> None:
        """Close, and wait until that is done. Network errors, about which asyncio would warn, are ignored."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return
