"""The roster's listener: a TCP server that authenticates its clients, and knows which workers are connected.

An unauthenticated connection occupies a socket and a few bytes for at most `HANDSHAKE_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from farandole.base.wire.address import format_address
from farandole.base.wire.async_channel import AsyncChannel
from farandole.base.wire.errors import BadMessage, ConnectionLost, WireError
from farandole.base.wire.frames import Codec
from farandole.base.wire.rendezvous import FromWorker, Hello, Placed

# Limit of unsent data for a worker that does not read, which bounds the roster's memory.
BACKLOG_BYTES = 8 * 1024 * 1024
BACKLOG = 4096
"""Maximum number of connections that wait to be accepted. All workers may connect at the same time, and one that is
rejected tries again only after a second."""


class Client:
    """One authenticated connection.

    Attributes:
        worker: number of the worker.
        channel: the connection.
        process: id of the worker's process; 0: it is not known.
        table: the digest of the world's table that the worker has, according to its latest join; empty: it has none.
    """

    def __init__(self, worker: int, channel: AsyncChannel, codec: Codec[FromWorker], process: int = 0) -> None:
        self.table = b""
        self.worker = worker
        self.process = process
        self.channel = channel
        self._codec = codec

    async def receive(self) -> FromWorker:
        """Wait for the worker's next message."""
        return self._codec.decode(await self.channel.receive())

    async def send(self, message: msgspec.Struct) -> None:
        """Send a message; wait while the send buffer is full."""
        await self.channel.send(self._codec.encode(message))

    def post(self, message: msgspec.Struct) -> None:
        """Send without waiting, so that a worker that does not read cannot block the messages to others.

        The message is dropped if the send buffer is full.
        """
        self.post_encoded(self._codec.encode(message))

    def post_encoded(self, payload: bytes) -> None:
        """Do the same as `post` with an encoded message, which may be for other workers, too."""
        if self.channel.backlog() < BACKLOG_BYTES:
            self.channel.post(payload)

    def post_if_idle(self, message: msgspec.Struct) -> bool:
        """Send a message if nothing else is to be sent, and return whether it was."""
        if self.channel.backlog() > 0:
            return False
        if isinstance(message, Placed):
            self.channel.post(*message.encoded())
        else:
            self.channel.post(self._codec.encode(message))
        return True


class Listener:
    """Accepts clients that have the job's secret, and passes on their messages.

    Args:
        secret: the job's secret, which clients must prove to have.
        heard: called with every message; the client's next message is read when it returns.
        closed: called with a client whose connection has closed.
        log: called with a line about every client whose connection is closed from this side.
        frame_limit: length of the longest accepted message, in bytes.
        handshake_seconds: seconds within which a client must authenticate.
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
        """Number of open connections by worker. One may serve the engine, another `farandole.run`."""
        self._unidentified = 0
        """Number of open connections that are not authenticated, or whose worker is not yet known."""
        self._fewer = asyncio.Event()
        """Set when one of the counts above may have fallen."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._closed_to_all = False

    async def open(self, host: str, port: int) -> str:
        """Listen on one address, and return `host:port`.

        Raises:
            OSError: the address cannot be listened on.
        """
        server = await asyncio.start_server(self._serve, host, port, backlog=BACKLOG)
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

    async def wait_until_read(self, worker: int, seconds: float) -> None:
        """Wait until everything that a dead worker sent has been read, for `seconds` at most.

        The limit is needed because a connection stays open while a child process that inherited its socket lives.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        # The connection of a worker that died quickly may not even be authenticated yet.
        while (worker in self._connections or self._unidentified) and (left := deadline - loop.time()) > 0:
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
            self._log(f"closed the connection of a client at {writer.get_extra_info('peername')}: {error}")
        except asyncio.CancelledError:
            pass  # close() cancels this task; asyncio would log a cancelled handler as an error.
        finally:
            self._tasks.discard(task)
            channel.close()

    async def _admit(self, channel: AsyncChannel) -> Client:
        self._unidentified += 1
        try:
            await channel.accept(self._secret, self._handshake_seconds)
            if self._closed_to_all:
                # Before Python 3.12, wait_for loses a cancellation that coincides with its result. And the task of a
                # client that was about to be served when the listener closed has not been cancelled.
                raise ConnectionLost("the listener is closing")
            hello = self._codec.decode(await channel.receive())
            if not isinstance(hello, Hello):
                raise BadMessage("the first message of a client was not Hello")
            self._connections[hello.worker] = self._connections.get(hello.worker, 0) + 1
            return Client(hello.worker, channel, self._codec, hello.process)
        finally:
            self._unidentified -= 1
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
