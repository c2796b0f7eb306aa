"""Roster services that end and restart on the same port, and clients that lose them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial

import msgspec
from scripted_roster import ScriptedRoster

from farandole.base.wire import roster_search
from farandole.base.wire.address import parse_address
from farandole.base.wire.channel import Channel
from farandole.base.wire.errors import ConnectionLost, WireTimeout
from farandole.base.wire.rendezvous import (
    FromWorker,
    Heard,
    Hello,
    Join,
    Listen,
)
from farandole.base.wire.roster_client import RosterClient
from farandole.control.roster import fixed
from farandole.control.roster.elastic import ElasticState, Limits
from farandole.control.roster.events import Place
from farandole.control.roster.listener import Client

SECRET = b"s" * 32
SECONDS = 60.0
"""Time limit in seconds, longer than anything here takes on a busy machine; the client's for answers, too."""


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Recording(ScriptedRoster):
    """Records messages, in order, each with its worker."""

    heard: list[tuple[int, FromWorker]]
    hangs_up_on: type[msgspec.Struct] = Hello  # which it never hears

    async def _handle(self, client: Client, message: FromWorker) -> None:
        self.heard.append((client.worker, message))
        if isinstance(message, self.hangs_up_on):
            raise ConnectionLost("it does not like that")
        await super()._handle(client, message)


class Breakable(Channel):
    broken = False


class Dead(Breakable):
    """A connection on which, when it is broken, sent data seem to arrive."""

    def send(self, payload: bytes, deadline: float | None = None) -> None:
        if not self.broken:
            super().send(payload, deadline)


class Stuck(Breakable):
    """A connection whose other side, when it is broken, does not read."""

    def send(self, payload: bytes, deadline: float | None = None) -> None:
        if self.broken:
            raise WireTimeout("the other side did not answer in time")
        super().send(payload, deadline)


class Roster:
    """Roster services of one job, one after the other, on the same port."""

    def __init__(self, size: int = 1, *, elastic: Limits | None = None) -> None:
        places = tuple(Place("here", rank, size, 0, 1) for rank in range(size))
        self._state = ElasticState(elastic) if elastic else fixed.FixedState(places)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.address = "127.0.0.1:0"
        self.begin()

    def begin(self, secret: bytes = SECRET) -> None:
        """Start another service, which has received nothing yet."""
        self.log: list[str] = []
        self._service = Recording(self._state, secret, log=self.log.append, call=b"call")
        self._service.heard = []
        self.address = self._do(self._service.start(*parse_address(self.address)))

    def end(self) -> None:
        """Close all connections, and free the port."""
        self._do(self._service.close())

    def stop(self) -> Callable[[], None]:
        """Suspend the service until the returned function is called."""
        resumed = threading.Event()
        self._loop.call_soon_threadsafe(resumed.wait, SECONDS)
        return resumed.set

    def expect(self, *workers: int) -> None:
        for worker in workers:
            self._loop.call_soon_threadsafe(self._service.expect, worker, "here")

    def of(self, worker: int) -> list[FromWorker]:
        """Return the messages that it has received from a worker."""
        return [message for sender, message in self._service.heard if sender == worker]

    def hears(self, worker: int, message: FromWorker) -> None:
        """Wait until a message of a worker has been received."""
        until(lambda: message in self.of(worker))

    def client(self, worker: int = 0, search_timeout: float = 60.0) -> RosterClient:
        return RosterClient.connect(self.address, SECRET, worker=worker, timeout=SECONDS, search_timeout=search_timeout)

    def listening(self, worker: int = 0, search_timeout: float = 60.0) -> tuple[RosterClient, list[Heard]]:
        client, heard = self.client(worker, search_timeout), list[Heard]()
        client.listen(heard.append)
        self.hears(worker, Listen())
        return client, heard

    def listening_through(self, kind: type[Breakable]) -> tuple[RosterClient, Breakable]:
        channel = kind.connect(self.address, SECRET, timeout=SECONDS)
        assert isinstance(channel, Breakable)
        dial = partial(roster_search.dial_roster, self.address, SECRET, 1 << 20)
        client = RosterClient(channel, 0, self.address, dial=dial, search_timeout=60.0)
        client.listen(lambda heard: None)
        self.hears(0, Listen())
        return client, channel

    def close(self) -> None:
        self.end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, what):
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(SECONDS)


def away(client: RosterClient) -> None:
    """Wait until a client has detected that the roster is lost."""
    until(lambda: client._away)


def without_contact(messages: list[FromWorker]) -> list[FromWorker]:
    return [Join("", 0.0, again=each.again) if isinstance(each, Join) else each for each in messages]
