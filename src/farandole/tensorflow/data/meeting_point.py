"""The meeting point of the processes of a data service, at which dispatchers and workers register.

One process serves it, all others are clients. Both sides prove that they have the service's key before anything else is
decoded (`base.wire.handshake`). A message is one frame of MessagePack; each request and its answer have their own
connection.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from farandole.base.wire import interfaces
from farandole.base.wire.address import format_address
from farandole.base.wire.async_channel import AsyncChannel
from farandole.base.wire.channel import Channel
from farandole.base.wire.errors import AuthenticationFailed, WireError
from farandole.errors import InvalidRequestError

CONNECT_SECONDS = 20.0
# How much longer than the wait itself an answer may take to arrive.
_ANSWER_SECONDS = 10.0
_MESSAGE_LIMIT = 4096

Addresses = Mapping[str, Sequence[tuple[str, int]]]


class RegisterDispatcher(msgspec.Struct, tag=True):
    """The message with a dispatcher's address."""

    dispatcher: int
    address: str


class AwaitDispatcher(msgspec.Struct, tag=True):
    """Request a dispatcher's address; answered once it is known."""

    dispatcher: int
    timeout: float


class RegisterWorker(msgspec.Struct, tag=True):
    """The message that a worker has begun to work for a dispatcher."""

    dispatcher: int
    worker: int


class AwaitWorkers(msgspec.Struct, tag=True):
    """A request that is answered once all workers of a dispatcher have registered."""

    dispatcher: int
    timeout: float


class AwaitDispatcherEnd(msgspec.Struct, tag=True):
    """A request that is answered when a dispatcher is about to stop, or the service is shut down."""

    dispatcher: int


class WorkerStopped(msgspec.Struct, tag=True):
    """The message that a worker no longer needs its dispatcher; answered when the service is shut down."""

    dispatcher: int
    worker: int


class EndDispatcher(msgspec.Struct, tag=True):
    """The message that a dispatcher is about to stop; answered once its workers have stopped."""

    dispatcher: int
    timeout: float


class Shutdown(msgspec.Struct, tag=True):
    """The message that the service is no longer needed."""


class AwaitShutdown(msgspec.Struct, tag=True):
    """A request that is answered when the service is shut down."""


class Answer(msgspec.Struct):
    """The result of a request."""

    text: str = ""
    failure: str = ""
    """The name of an exception, whose message is the text; "": the request succeeded."""


Request = (
    RegisterDispatcher
    | AwaitDispatcher
    | RegisterWorker
    | AwaitWorkers
    | AwaitDispatcherEnd
    | WorkerStopped
    | EndDispatcher
    | Shutdown
    | AwaitShutdown
)
_FAILURES: dict[str, type[Exception]] = {each.__name__: each for each in (IndexError, ValueError, TimeoutError)}


class ComputeService:
    """The server of the meeting point.

    Args:
        dispatchers: the number of dispatchers that will register.
        workers_per_dispatcher: the number of workers of each dispatcher.
        key: the secret that all processes of the service have.
        nics: the interfaces, addresses or networks to listen on; None: all, and loopback.

    Raises:
        ValueError: the number of dispatchers or of workers is 0.
    """

    def __init__(
        self, dispatchers: int, workers_per_dispatcher: int, key: bytes, nics: Sequence[str] | None = None
    ) -> None:
        if dispatchers <= 0:
            raise InvalidRequestError(f"The number of dispatchers must be larger than 0: {dispatchers}")
        if workers_per_dispatcher <= 0:
            raise InvalidRequestError(
                f"The number of workers per dispatcher must be larger than 0: {workers_per_dispatcher}"
            )
        self._key = key
        self._workers_per_dispatcher = workers_per_dispatcher
        self._dispatchers: list[str | None] = [None] * dispatchers
        self._workers: list[set[int]] = [set() for _ in range(dispatchers)]
        self._stopped: list[set[int]] = [set() for _ in range(dispatchers)]
        self._ending: set[int] = set()
        self._is_over = False
        self._clients: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="compute-service", daemon=True)
        self._thread.start()
        self._addresses = self._call(self._open(nics))

    def addresses(self) -> dict[str, list[tuple[str, int]]]:
        """Return the addresses that the server listens on, by interface."""
        return {interface: list(addresses) for interface, addresses in self._addresses.items()}

    def wait_for_workers(self, timeout: float) -> None:
        """Wait until all registered workers have stopped, or for `timeout` seconds."""
        with suppress(TimeoutError):
            self._call(self._until(self._all_have_stopped, timeout, "workers to stop"))

    def shutdown(self) -> None:
        """Answer the clients that wait for the end, and stop listening. No-op if this has happened."""
        if self._thread.is_alive():
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _open(self, nics: Sequence[str] | None) -> dict[str, list[tuple[str, int]]]:
        self._changed = asyncio.Condition()
        self._servers = []
        found: dict[str, list[tuple[str, int]]] = {}
        for interface, address in listening_addresses(nics):
            server = await asyncio.start_server(self._serve, address, 0)
            self._servers.append(server)
            found.setdefault(interface, []).append((address, server.sockets[0].getsockname()[1]))
        return found

    async def _close(self) -> None:
        await self._change(lambda: setattr(self, "_is_over", True))
        for server in self._servers:
            server.close()
        if self._clients:
            _, late = await asyncio.wait(self._clients, timeout=_ANSWER_SECONDS)
            for task in late:
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        channel = AsyncChannel(reader, writer, _MESSAGE_LIMIT)
        # A client that cannot prove that it belongs to the job, or that has ended, gets no answer.
        with suppress(WireError, msgspec.DecodeError, msgspec.ValidationError, asyncio.CancelledError):
            await channel.accept(self._key)
            request: Any = msgspec.msgpack.decode(await channel.receive(), type=Request)
            await channel.send(msgspec.msgpack.encode(await self._answer(request)))
        self._clients.discard(task)
        channel.close()

    async def _answer(self, request: Request) -> Answer:
        try:
            return Answer(await self._handle(request))
        except (IndexError, ValueError, TimeoutError, asyncio.TimeoutError) as error:
            kind = next(name for name, each in _FAILURES.items() if isinstance(error, each))
            return Answer(str(error), kind)

    async def _handle(self, request: Request) -> str:
        if isinstance(request, RegisterDispatcher):
            self._check(request.dispatcher)
            known = self._dispatchers[request.dispatcher]
            if known not in (None, request.address):
                raise ValueError(
                    f"Dispatcher with id {request.dispatcher} has already been registered under different address "
                    f"{known}: {request.address}"
                )
            await self._change(lambda: self._dispatchers.__setitem__(request.dispatcher, request.address))
        elif isinstance(request, AwaitDispatcher):
            self._check(request.dispatcher)
            await self._until(
                lambda: self._dispatchers[request.dispatcher] is not None,
                request.timeout,
                f"dispatcher {request.dispatcher} to register. Find out why the dispatcher takes so long",
            )
            return self._dispatchers[request.dispatcher] or ""
        elif isinstance(request, RegisterWorker):
            self._check(request.dispatcher)
            await self._change(lambda: self._workers[request.dispatcher].add(request.worker))
        elif isinstance(request, AwaitWorkers):
            # If there is a single dispatcher, it is the one of all ranks.
            dispatcher = request.dispatcher if len(self._dispatchers) > 1 else 0
            self._check(dispatcher)
            await self._until(
                lambda: len(self._workers[dispatcher]) >= self._workers_per_dispatcher,
                request.timeout,
                f"workers for dispatcher {dispatcher} to register. Find out why the workers take so long",
            )
        elif isinstance(request, AwaitDispatcherEnd):
            self._check(request.dispatcher)
            await self._until(lambda: self._is_over or request.dispatcher in self._ending, None, "")
        elif isinstance(request, WorkerStopped):
            self._check(request.dispatcher)
            await self._change(lambda: self._stopped[request.dispatcher].add(request.worker))
            # On the same connection: a service that has no worker left may listen no more.
            await self._until(lambda: self._is_over, None, "")
        elif isinstance(request, EndDispatcher):
            self._check(request.dispatcher)
            await self._change(lambda: self._ending.add(request.dispatcher))
            await self._until(
                lambda: self._workers[request.dispatcher] <= self._stopped[request.dispatcher],
                request.timeout,
                f"workers of dispatcher {request.dispatcher} to stop. Find out why the workers take so long",
            )
        elif isinstance(request, Shutdown):
            await self._change(lambda: setattr(self, "_is_over", True))
        else:
            await self._until(lambda: self._is_over, None, "")
        return ""

    def _all_have_stopped(self) -> bool:
        return all(here <= stopped for here, stopped in zip(self._workers, self._stopped, strict=True))

    def _check(self, dispatcher: int) -> None:
        if not 0 <= dispatcher < len(self._dispatchers):
            raise IndexError(f"Dispatcher id must be within [0..{len(self._dispatchers) - 1}]: {dispatcher}")

    async def _change(self, change: Callable[[], object]) -> None:
        async with self._changed:
            change()
            self._changed.notify_all()

    async def _until(self, holds: Callable[[], bool], seconds: float | None, what: str) -> None:
        async def wait() -> None:
            async with self._changed:
                await self._changed.wait_for(holds)

        try:
            await asyncio.wait_for(wait(), seconds)
        except (TimeoutError, asyncio.TimeoutError):
            raise TimeoutError(f"Timed out waiting for {what}, or increase timeout (now {seconds:g} s).") from None


class ComputeClient:
    """The client of the meeting point, which the other processes use.

    Args:
        addresses: the service's addresses, by interface; all are tried.
        key: the secret of the service.
        verbose: not used.
    """

    def __init__(self, addresses: Addresses, key: bytes, verbose: int = 1) -> None:
        self._addresses = ",".join(format_address(*each) for some in addresses.values() for each in some)
        self._key = key

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Register the address of a dispatcher.

        Raises:
            IndexError: the service has no dispatcher of this number.
            ValueError: it was registered with another address before.
        """
        self._ask(RegisterDispatcher(dispatcher_id, dispatcher_address))

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """Return a dispatcher's address, once it is known.

        Raises:
            IndexError: the service has no dispatcher of this number.
            TimeoutError: it has not registered within `timeout` seconds.
        """
        return self._ask(AwaitDispatcher(dispatcher_id, timeout), timeout)

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Register a worker that has begun to work for a dispatcher.

        Raises:
            IndexError: the service has no dispatcher of this number.
        """
        self._ask(RegisterWorker(dispatcher_id, worker_id))

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Wait until all workers of a dispatcher have registered.

        Raises:
            IndexError: the service has no dispatcher of this number.
            TimeoutError: some have not registered within `timeout` seconds.
        """
        self._ask(AwaitWorkers(dispatcher_id, timeout), timeout)

    def wait_for_dispatcher_end(self, dispatcher_id: int) -> None:
        """Wait until a dispatcher is about to stop, or the service is shut down.

        Raises:
            IndexError: the service has no dispatcher of this number.
            ConnectionError: the service's process has ended in another way.
        """
        self._ask(AwaitDispatcherEnd(dispatcher_id), None)

    def worker_has_stopped(self, dispatcher_id: int, worker_id: int) -> None:
        """Report that a worker no longer needs its dispatcher, and return when the service is shut down.

        Raises:
            IndexError: the service has no dispatcher of this number.
            ConnectionError: the service's process has ended in another way.
        """
        self._ask(WorkerStopped(dispatcher_id, worker_id), None)

    def end_dispatcher(self, dispatcher_id: int, timeout: float) -> None:
        """Ask the workers of a dispatcher to stop, and return when they have stopped.

        A worker that needs an answer of a dispatcher that has gone would repeat its request before it can be stopped.

        Raises:
            IndexError: the service has no dispatcher of this number.
            TimeoutError: some have not stopped within `timeout` seconds.
        """
        self._ask(EndDispatcher(dispatcher_id, timeout), timeout)

    def shutdown(self) -> None:
        """Shut down the service, and the workers and dispatchers that wait for this."""
        self._ask(Shutdown())

    def wait_for_shutdown(self) -> None:
        """Wait until the service is shut down.

        Raises:
            ConnectionError: its process has ended in another way.
        """
        self._ask(AwaitShutdown(), None)

    def _ask(self, request: Request, seconds: float | None = 0.0) -> str:
        """Send a request, and return the answer; `seconds`: the time limit for the answer; None: none."""
        try:
            channel = Channel.connect(self._addresses, self._key, timeout=CONNECT_SECONDS, limit=_MESSAGE_LIMIT)
        except AuthenticationFailed:
            raise AuthenticationFailed(
                f"the service at {self._addresses} does not have the key of this configuration, which is from another "
                "run. Read the file that the current service has written."
            ) from None
        try:
            channel.send(msgspec.msgpack.encode(request), time.monotonic() + _ANSWER_SECONDS)
            deadline = None if seconds is None else time.monotonic() + seconds + _ANSWER_SECONDS
            answer = msgspec.msgpack.decode(channel.receive(deadline), type=Answer)
        finally:
            channel.close()
        if answer.failure:
            raise _FAILURES.get(answer.failure, RuntimeError)(answer.text)
        return answer.text


def listening_addresses(networks: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return the addresses to listen on, as pairs of interface and address, the fastest first.

    Args:
        networks: the networks that may be used; None: all of them, followed by loopback.
    """
    everything = interfaces.every_address() if networks else interfaces.addresses()
    found = interfaces.pick(everything, networks) if networks else everything
    usable = [(each.interface, each.address) for each in found if "%" not in each.address]
    return usable if networks else [*usable, ("lo", "127.0.0.1")]
