"""Workers that listen to the roster: messages between them, and the roster's clock."""

from __future__ import annotations

import asyncio
import queue
import socket
import time
from collections.abc import Callable

import pytest
from running_roster import SECRET, Running

from farandole.base.wire import clock
from farandole.base.wire.channel import Channel
from farandole.base.wire.frames import Codec
from farandole.base.wire.rendezvous import (
    Absent,
    Heard,
    Hello,
    Listen,
    Probed,
    Relayed,
    RendezvousError,
)
from farandole.base.wire.roster_client import RosterClient
from farandole.control.roster.listener import BACKLOG_BYTES


class Listener:
    """What a client heard."""

    def __init__(self, client: RosterClient) -> None:
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        client.listen(self._heard.put)

    def next(self) -> Heard:
        return self._heard.get(timeout=10)


def settle(client: RosterClient, listener: Listener) -> None:
    """Wait until the roster has read all that a client has sent."""
    client.probe()
    assert isinstance(listener.next(), Probed)


def test_workers_send_each_other_messages(serve: Callable[..., Running]) -> None:
    roster = serve(2)
    with roster.client(0) as first, roster.client(1) as second:
        listeners = [Listener(first), Listener(second)]
        settle(first, listeners[0])
        second.relay(0, b"a")
        second.relay(0, b"b" * 100_000)
        assert [listeners[0].next(), listeners[0].next()] == [Relayed(1, b"a"), Relayed(1, b"b" * 100_000)]
        first.relay(1, b"c")
        assert listeners[1].next() == Relayed(0, b"c")


def test_worker_that_does_not_listen_is_absent(serve: Callable[..., Running]) -> None:
    roster = serve(2)
    with roster.client(0) as client:
        listener = Listener(client)
        client.relay(1, b"x")
        assert listener.next() == Absent(1)
        with roster.client(1) as other:
            settle(other, Listener(other))
            client.relay(1, b"y")
        roster.wait_until_read(1)
        client.relay(1, b"z")
        assert listener.next() == Absent(1)


def test_the_rosters_clock(serve: Callable[..., Running]) -> None:
    roster = serve(1)
    with roster.client(0) as client:
        listener = Listener(client)
        before = time.monotonic_ns()
        client.probe()
        answer = listener.next()
        assert isinstance(answer, Probed) and answer.clock == clock.identity()
        assert before <= answer.sent_ns <= answer.now_ns <= time.monotonic_ns()


def test_listener_can_still_send_requests(serve: Callable[..., Running]) -> None:
    roster = serve(2, call=b"call")
    with roster.client(0) as client, roster.client(1) as other:
        listener = Listener(client)
        settle(client, listener)
        other.relay(0, b"in between")
        assert client.fetch_call() == b"call"
        assert listener.next() == Relayed(1, b"in between")


def test_listener_notices_end_of_roster(serve: Callable[..., Running]) -> None:
    roster = serve(1)
    with roster.client(0) as client:
        settle(client, Listener(client))
        asyncio.run_coroutine_threadsafe(roster.service.close(), roster._loop).result(10)
        for _ in range(2):
            with pytest.raises(RendezvousError, match="lost the roster"):
                client.fetch_call()


def test_worker_that_does_not_read_costs_little_memory_and_delays_no_others(serve: Callable[..., Running]) -> None:
    roster = serve(2)
    pieces = 40
    with raw_listener(roster, 0) as deaf, roster.client(1) as client:
        listener = Listener(client)
        settle(client, listener)
        for _ in range(pieces):
            client.relay(0, bytes(1 << 20))
        settle(client, listener)
        backlog: list[int] = []
        roster.do(lambda: backlog.append(roster.service._connections.listeners[0].channel.backlog()))
        assert 0 < backlog[0] <= BACKLOG_BYTES + (1 << 21)
        received = 0
        deaf.settimeout(10)
        while received < backlog[0]:
            received += len(deaf.recv(1 << 20))
        assert received < pieces << 20


def raw_listener(roster: Running, worker: int) -> socket.socket:
    """Return a proven connection that listens, and reads only when the test does."""
    channel = Channel.connect(roster.address, SECRET, timeout=10)
    codec: Codec[object] = Codec(Listen)
    channel.send(codec.encode(Hello(worker)))
    channel.send(codec.encode(Listen()))
    while not listens(roster, worker):
        pass
    sock = channel._stream.source
    assert isinstance(sock, socket.socket)
    sock.setblocking(True)
    return sock


def listens(roster: Running, worker: int) -> bool:
    found: list[bool] = []
    roster.do(lambda: found.append(worker in roster.service._connections.listeners))
    return found[0]
