"""The roster's door: a TCP server that proves its clients, asks `decide`, and does what it says.

Everything runs in one asyncio loop, which owns all state; nothing here may be called from another thread.
A connection that is not proven costs a socket and a few bytes for at most `HANDSHAKE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from farandole.core import clock
from farandole.core.rendezvous import (
    Absent,
    Accepted,
    Call,
    Failure,
    FetchCall,
    FromRoster,
    FromWorker,
    Hello,
    Join,
    Leave,
    Listen,
    Probe,
    Probed,
    Progress,
    Refused,
    Result,
    Tell,
    Told,
    World,
)
from farandole.core.wire import (
    FRAME_LIMIT,
    HANDSHAKE_SECONDS,
    AsyncChannel,
    BadMessage,
    Codec,
    WireError,
    format_address,
)
from farandole.roster.decide import (
    Action,
    Announce,
    Event,
    Failed,
    Finished,
    Joined,
    Left,
    Lost,
    Place,
    Refuse,
    State,
    TimedOut,
    decide,
)

# What one worker has been told and has not read: beyond this, the roster would pay for it with its own memory.
BACKLOG_BYTES = 8 * 1024 * 1024


class _Client:
    """One proven connection."""

    def __init__(self, worker: int, channel: AsyncChannel) -> None:
        self.worker = worker
        self.channel = channel
        self.timer: asyncio.TimerHandle | None = None
        """Runs while a join waits."""

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class RosterService:
    """Serves one job's workers.

    Args:
        places: by rank; their number is the size of the world. All of them, or none: then the workers say, when they
            join, on what host they are.
        secret: what a client must prove to hold.
        on_failure: called with the worker and its report.
        on_progress: called with the worker and how it gets on.
        log: takes the reason of every decision.
        call: the pickled call that workers may fetch, if there is one.
    """

    def __init__(
        self,
        places: tuple[Place | None, ...],
        secret: bytes,
        *,
        on_failure: Callable[[int, Failure], None] = lambda worker, failure: None,
        on_progress: Callable[[int, Progress], None] = lambda worker, progress: None,
        log: Callable[[str], None] = lambda reason: None,
        call: bytes | None = None,
        frame_limit: int = FRAME_LIMIT,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self.results: dict[int, bytes] = {}
        self._state = State(places=places)
        self._secret = secret
        self._on_failure = on_failure
        self._on_progress = on_progress
        self._log = log
        self._call = call
        self._frame_limit = frame_limit
        self._handshake_seconds = handshake_seconds
        self._codec: Codec[FromWorker] = Codec(FromWorker)
        self._connections: dict[int, int] = {}
        """Open connections by worker. Several are fine: one may serve the engine, another `farandole.run`."""
        self._waiting: dict[int, _Client] = {}
        """By worker: whose join has no answer yet."""
        self._listeners: dict[int, _Client] = {}
        """By worker: who takes what others tell it."""
        self._strangers = 0
        """Open connections that have not said whose they are."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()
        """Set when one of the counts above may have fallen."""
        self._servers: list[asyncio.Server] = []

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen on that address only, and return `host:port`. May be called for several addresses.

        Args:
            host: an address of this machine, in numbers.
            port: 0 is any that is free.

        Raises:
            OSError: it cannot be listened on.
        """
        server = await asyncio.start_server(self._serve, host, port)
        self._servers.append(server)
        return format_address(host, server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and hang up on everyone."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def finished(self, worker: int, how: str) -> None:
        """Take note that a worker's process has ended; `how` is such as `exited with code 1`."""
        self._happened(Finished(worker, how))

    async def silence(self, worker: int, seconds: float) -> None:
        """Wait until all that a dead worker sent has been read, at most so long.

        A connection stays open while a child of it lives that inherited the socket.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        # A worker that died quickly may have written all it had to say before its proof was even read.
        while (self._connections.get(worker) or self._strangers) and (left := deadline - loop.time()) > 0:
            self._closed.clear()
            try:
                await asyncio.wait_for(self._closed.wait(), left)
            except (TimeoutError, asyncio.TimeoutError):
                return

    # --- connections -----------------------------------------------------------------------------------------

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

    async def _admit(self, channel: AsyncChannel) -> _Client:
        self._strangers += 1
        try:
            await channel.accept(self._secret, self._handshake_seconds)
            hello = self._codec.decode(await channel.receive())
            if not isinstance(hello, Hello):
                raise BadMessage("a client that did not say who it is")
            self._connections[hello.worker] = self._connections.get(hello.worker, 0) + 1
            return _Client(hello.worker, channel)
        finally:
            self._strangers -= 1
            self._closed.set()

    async def _converse(self, client: _Client) -> None:
        worker = client.worker
        try:
            while True:
                await self._obey(client, self._codec.decode(await client.channel.receive()))
        finally:
            self._connections[worker] -= 1
            self._closed.set()
            if self._listeners.get(worker) is client:
                del self._listeners[worker]
            if self._waiting.get(worker) is client:
                client.stop_timer()
                del self._waiting[worker]
                self._happened(Lost(worker))

    async def _obey(self, client: _Client, message: FromWorker) -> None:
        worker = client.worker
        if isinstance(message, Join) and worker in self._waiting:
            twice = f"worker {worker} joined twice: do two processes, or two engines, use the same FARANDOLE_RANK?"
            await client.channel.send(self._codec.encode(Refused(twice)))
        elif isinstance(message, Join):
            self._waiting[worker] = client
            client.timer = asyncio.get_running_loop().call_later(
                message.timeout, self._happened, TimedOut(worker, message.timeout)
            )
            self._happened(Joined(worker, message.contact, message.host, message.hostname))
        elif isinstance(message, Leave):
            self._happened(Left(worker, message.generation))
        elif isinstance(message, Failure):
            self._on_failure(worker, message)
            self._happened(Failed(worker, message.exception))
        elif isinstance(message, Progress):
            self._on_progress(worker, message)
        elif isinstance(message, FetchCall):
            await client.channel.send(self._codec.encode(self._called()))
        elif isinstance(message, Result):
            self.results[worker] = message.payload
            await client.channel.send(self._codec.encode(Accepted()))
        elif isinstance(message, Listen):
            self._listeners[worker] = client
        elif isinstance(message, Tell):
            self._pass_on(client, message)
        elif isinstance(message, Probe):
            self._post(client, Probed(message.sent_ns, time.monotonic_ns(), clock.identity()))
        else:
            raise BadMessage(f"worker {worker} said hello twice")

    def _pass_on(self, sender: _Client, message: Tell) -> None:
        listener = self._listeners.get(message.to)
        if listener is None:
            self._post(sender, Absent(message.to))
        else:
            self._post(listener, Told(sender.worker, message.payload))

    def _post(self, client: _Client, message: msgspec.Struct) -> None:
        """Send without waiting: a worker that does not read must not keep others from being heard."""
        if client.channel.backlog() < BACKLOG_BYTES:
            client.channel.post(self._codec.encode(message))

    def _called(self) -> FromRoster:
        if self._call is None:
            return Refused("this job runs a command, not a function: there is no call to fetch")
        return Call(self._call)

    # --- decisions ---------------------------------------------------------------------------------------------

    def _happened(self, event: Event) -> None:
        self._state, actions, reason = decide(self._state, event)
        self._log(reason)
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        if isinstance(action, Announce):
            for rank in range(self._state.size):
                self._reply(rank, self._world(rank, action))
        elif isinstance(action, Refuse):
            self._reply(action.worker, Refused(action.reason, action.rank))

    def _world(self, rank: int, action: Announce) -> World:
        place = action.places[rank]
        return World(
            generation=action.generation,
            rank=rank,
            size=len(action.places),
            contacts=action.contacts,
            local_rank=place.local_rank,
            local_size=place.local_size,
            cross_rank=place.cross_rank,
            cross_size=place.cross_size,
            hostnames=tuple(each.hostname for each in action.places),
        )

    def _reply(self, worker: int, message: msgspec.Struct) -> None:
        client = self._waiting.pop(worker)
        client.stop_timer()
        task = asyncio.get_running_loop().create_task(self._send(client, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, client: _Client, message: msgspec.Struct) -> None:
        try:
            await client.channel.send(self._codec.encode(message))
        except WireError as error:
            self._log(f"rank {client.worker} did not take an answer: {error}")
