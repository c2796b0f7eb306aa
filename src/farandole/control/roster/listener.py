"""The roster's listener: a TCP server that proves its clients, and knows which workers are connected.

A connection that is not proven costs a socket and a few bytes for at most `HANDSHAKE_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from farandole.base.wire.address import format_address
from farandole.base.wire.async_channel import AsyncChannel
from farandole.base.wire.errors import BadMessage, ConnectionLost, WireError
from farandole.base.wire.frames import Codec
from farandole.base.wire.rendezvous import FromWorker, Hello

# The most that is kept for a worker that does not read. More would cost the roster too much RAM.
BACKLOG_BYTES = 8 * 1024 * 1024


class Client:
    """One proven connection."""

    def __init__(self, worker: int, channel: AsyncChannel, codec: Codec[FromWorker]) -> None:
        self.worker = worker
        self.channel = channel
        self._codec = codec

    async def receive(self) -> FromWorker:
        """Wait for the worker's next message."""
        return self._codec.decode(await self.channel.receive())

    async def send(self, message: msgspec.Struct) -> None:
        """Send, and wait while too much is on its way."""
        await self.channel.send(self._codec.encode(message))

    def post(self, message: msgspec.Struct) -> None:
        """Send without waiting: a worker that does not read must not keep others from being heard."""
        if self.channel.backlog() < BACKLOG_BYTES:
            self.channel.post(self._codec.encode(message))


class Listener:
    """Accepts clients that hold the job's secret, and passes on their messages.

    Args:
        secret: what a client must prove to hold.
        heard: called with every message; the next one of that client is read when it is done.
        closed: called with a client whose connection has closed.
        log: takes a line about every client whose connection is closed from here.
        frame_limit: longest message, in bytes, that is taken.
        handshake_seconds: for a client to prove itself.
    """

    def __init__(
        self,
        secret: bytes,
        heard: Callable[[Client, FromWorker], Awaitable[None]],
        closed: Callable[[Client], None],
        log: Callable[[str], None],
        frame_limit: int,
        handshake_seconds: float,
    ) -> None:
        self._secret = secret
        self._heard = heard
        self._closed = closed
        self._log = log
        self._frame_limit = frame_limit
        self._handshake_seconds = handshake_seconds
        self._codec: Codec[FromWorker] = Codec(FromWorker)
        self._connections: dict[int, int] = {}
        """Open connections by worker. Several are fine: one may serve the engine, another `farandole.run`."""
        self._strangers = 0
        """Open connections that are not proven yet, or whose worker is not known yet."""
        self._fewer = asyncio.Event()
        """Set when one of the counts above may have fallen."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._closed_to_all = False

    async def open(self, host: str, port: int) -> str:
        """Listen on that address only, and return `host:port`.

        Raises:
            OSError: it cannot be listened on.
        """
        server = await asyncio.start_server(self._serve, host, port)
        self._servers.append(server)
        return format_address(host, server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        self._closed_to_all = True
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def silence(self, worker: int, seconds: float) -> None:
        """Wait until all that a dead worker sent has been read, at most so long.

        A connection stays open while a child of it lives that inherited the socket.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        # A worker that died quickly may have written all it had to say before its proof was even read.
        while (worker in self._connections or self._strangers) and (left := deadline - loop.time()) > 0:
            self._fewer.clear()
            try:
                await asyncio.wait_for(self._fewer.wait(), left)
            except (TimeoutError, asyncio.TimeoutError):
                return

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        channel = AsyncChannel(reader, writer, self._frame_limit)
        try:
            await self._converse(await self._admit(channel))
        except WireError as error:
            self._log(f"hung up on a client at {writer.get_extra_info('peername')}: {error}")
        except asyncio.CancelledError:
            pass  # close() wants this connection gone; asyncio would log a cancelled handler as an error.
        finally:
            self._tasks.discard(task)
            channel.close()

    async def _admit(self, channel: AsyncChannel) -> Client:
        self._strangers += 1
        try:
            await channel.accept(self._secret, self._handshake_seconds)
            if self._closed_to_all:
                # Before Python 3.12, wait_for drops a cancellation that comes together with what it waits for. And a
                # client that was about to be served when the listener closed has not been cancelled.
                raise ConnectionLost("it came when the listener was closing")
            hello = self._codec.decode(await channel.receive())
            if not isinstance(hello, Hello):
                raise BadMessage("a client that did not say who it is")
            self._connections[hello.worker] = self._connections.get(hello.worker, 0) + 1
            return Client(hello.worker, channel, self._codec)
        finally:
            self._strangers -= 1
            self._fewer.set()

    async def _converse(self, client: Client) -> None:
        try:
            while True:
                await self._heard(client, await client.receive())
        finally:
            self._connections[client.worker] -= 1
            if not self._connections[client.worker]:
                del self._connections[client.worker]
            self._fewer.set()
            self._closed(client)
