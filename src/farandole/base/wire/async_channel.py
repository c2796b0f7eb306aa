"""Frames over asyncio streams: the side that accepts connections, and pipes."""

from __future__ import annotations

import asyncio

from farandole.base.wire.errors import BadMessage, ConnectionLost, WireError, WireTimeout
from farandole.base.wire.frames import FRAME_LIMIT, LENGTH_BYTES, frame, frame_length
from farandole.base.wire.handshake import HANDSHAKE_LIMIT, HANDSHAKE_SECONDS, ServerHandshake

_FORGOTTEN_AT_ONCE = 1 << 16


class AsyncChannel:
    """Frames over asyncio streams: a socket that has yet to prove itself, or a pipe that needs no proof."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int = FRAME_LIMIT) -> None:
        self._reader = reader
        self._writer = writer
        self._limit = limit

    async def accept(self, secret: bytes, timeout: float = HANDSHAKE_SECONDS) -> None:
        """Prove both sides to each other, as the server. Close the channel when this raises.

        Raises:
            AuthenticationFailed: the client does not hold the secret or speaks something else.
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
        """Send one frame, and wait while too much is on its way."""
        try:
            self._writer.write(frame(payload))
            await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error.strerror or error}") from None

    def post(self, payload: bytes) -> None:
        """Send one frame without waiting, for small ones to a side that always reads."""
        self._writer.write(frame(payload))

    def backlog(self) -> int:
        """Return how many bytes wait here because the other side does not read them."""
        return self._writer.transport.get_write_buffer_size()

    async def skip_to(self, mark: bytes) -> None:
        """Pass over what comes before a mark, and the mark.

        Raises:
            BadMessage: it does not come soon.
            ConnectionLost: the other side closed before.
        """
        try:
            await self._reader.readuntil(mark)
        except asyncio.IncompleteReadError:
            raise ConnectionLost("the other side closed the connection") from None
        except asyncio.LimitOverrunError:
            raise BadMessage("the other side speaks something else") from None

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
        """Read until the other side closes, and keep nothing: asyncio does not notice the end of what is not read."""
        try:
            while await self._reader.read(_FORGOTTEN_AT_ONCE):
                pass
        except OSError:
            return

    def close(self) -> None:
        """Close without waiting."""
        self._writer.close()

    async def closed(self) -> None:
        """Close, and wait until that is done; an error of the way, which asyncio would complain of, is let pass."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return
