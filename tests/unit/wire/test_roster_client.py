"""A client and the roster that it loses: real sockets, a service in a thread that ends and comes back."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue

import msgspec
import pytest

from farandole.core import worlds
from farandole.core.engine import Engine
from farandole.core.worlds import Notices, Preemption
from farandole.roster.elastic import Limits
from farandole.roster.events import Place
from farandole.roster.listener import Client
from farandole.roster.service import RosterService
from farandole.wire import roster_client
from farandole.wire.address import parse_address
from farandole.wire.channel import Channel
from farandole.wire.errors import ConnectionLost, WireError, WireTimeout
from farandole.wire.frames import Codec
from farandole.wire.rendezvous import (
    Coming,
    FromRoster,
    FromWorker,
    Heard,
    Hello,
    Holds,
    Join,
    Leave,
    Leaving,
    Listen,
    Probed,
    RosterUnreachable,
    Told,
)
from farandole.wire.roster_client import RosterClient

SECRET = b"s" * 32
SECONDS = 10.0
"""Nothing here takes so long, unless it does not happen at all."""


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Recording(RosterService):
    """Keeps what it hears, in order, with the worker who said it."""

    heard: list[tuple[int, FromWorker]]
    hangs_up_on: type[msgspec.Struct] = Hello  # which it never hears

    async def _obey(self, client: Client, message: FromWorker) -> None:
        self.heard.append((client.worker, message))
        if isinstance(message, self.hangs_up_on):
            raise ConnectionLost("it does not like that")
        await super()._obey(client, message)


class Breakable(Channel):
    broken = False


class Dead(Breakable):
    """What is sent seems to arrive, when it is broken."""

    def send(self, payload: bytes, deadline: float | None = None) -> None:
        if not self.broken:
            super().send(payload, deadline)


class Stuck(Breakable):
    """The other side does not read, when it is broken."""

    def send(self, payload: bytes, deadline: float | None = None) -> None:
        if self.broken:
            raise WireTimeout("the other side did not answer in time")
        super().send(payload, deadline)


class Roster:
    """Services of one job, one after the other, on the same port."""

    def __init__(self, size: int = 1, *, elastic: Limits | None = None) -> None:
        self._places = () if elastic else tuple(Place("here", rank, size, 0, 1) for rank in range(size))
        self._elastic = elastic
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.address = "127.0.0.1:0"
        self.begin()

    def begin(self, secret: bytes = SECRET) -> None:
        """Have another one, which has heard nothing yet."""
        self.log: list[str] = []
        self._service = Recording(self._places, secret, log=self.log.append, elastic=self._elastic, call=b"call")
        self._service.heard = []
        self.address = self._do(self._service.start(*parse_address(self.address)))

    def end(self) -> None:
        """Hang up on everyone, and leave the port."""
        self._do(self._service.close())

    def expect(self, *workers: int) -> None:
        for worker in workers:
            self._loop.call_soon_threadsafe(self._service.expect, worker, "here")

    def of(self, worker: int) -> list[FromWorker]:
        """Return what it has heard of a worker."""
        return [message for sender, message in self._service.heard if sender == worker]

    def hears(self, worker: int, message: FromWorker) -> None:
        """Wait for a message."""
        until(lambda: message in self.of(worker))

    def client(self, worker: int = 0, patience: float = 60.0) -> RosterClient:
        return RosterClient.connect(self.address, SECRET, worker=worker, timeout=SECONDS, patience=patience)

    def listening(self, worker: int = 0, patience: float = 60.0) -> tuple[RosterClient, list[Heard]]:
        client, heard = self.client(worker, patience), list[Heard]()
        client.listen(heard.append)
        self.hears(worker, Listen())
        return client, heard

    def listening_through(self, kind: type[Breakable]) -> tuple[RosterClient, Breakable]:
        channel = kind.connect(self.address, SECRET, timeout=SECONDS)
        assert isinstance(channel, Breakable)
        dial = partial(roster_client._dial, self.address, SECRET, 1 << 20)
        client = RosterClient(channel, 0, self.address, dial=dial, patience=60.0)
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


@pytest.fixture
def serve() -> Iterator[Callable[..., Roster]]:
    rosters: list[Roster] = []

    def serve(*arguments: int, **options: Limits) -> Roster:
        rosters.append(Roster(*arguments, **options))
        return rosters[-1]

    yield serve
    for each in rosters:
        each.close()


def away(client: RosterClient) -> None:
    """Wait until a client has noticed that the roster is lost."""
    until(lambda: client._away)


def without_contact(messages: list[FromWorker]) -> list[FromWorker]:
    return [Join("", 0.0, again=each.again) if isinstance(each, Join) else each for each in messages]


# --- the roster comes back ------------------------------------------------------------------------------------------


def test_a_join_that_waits_is_answered_by_the_next_roster(serve: Callable[..., Roster]) -> None:
    roster = serve(2)
    client, _ = roster.listening(0)
    with client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.join, "c0", 60)
        until(lambda: any(isinstance(each, Join) for each in roster.of(0)))
        roster.end()
        roster.begin()
        with roster.client(1) as other:
            assert other.join("c1", 60).contacts == ("c0", "c1")
        assert waiting.result(SECONDS).rank == 0
        assert without_contact(roster.of(0)) == [Listen(), Join("", 0.0, again=True)]


def test_a_join_of_a_worker_that_has_lost_the_roster_is_asked_of_the_next(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    client, _ = roster.listening()
    with client, ThreadPoolExecutor(1) as pool:
        roster.end()
        away(client)
        waiting = pool.submit(client.join, "", 60)
        time.sleep(0.1)
        assert not waiting.done()
        roster.begin()
        assert waiting.result(SECONDS).size == 1


def test_what_went_into_a_dead_connection_is_said_again(serve: Callable[..., Roster]) -> None:
    """Its other end has died, and the news of it is still on its way."""
    roster = serve(1)
    client, channel = roster.listening_through(Dead)
    with client, ThreadPoolExecutor(1) as pool:
        channel.broken = True
        client.report_state(1)
        waiting = pool.submit(client.join, "", 60)
        until(lambda: client._asked is not None)
        time.sleep(0.05)
        assert not waiting.done()
        roster.end()
        roster.begin()
        assert waiting.result(SECONDS).size == 1
        assert without_contact(roster.of(0)) == [Listen(), Holds(1), Join("", 0.0, again=True)]


def test_what_was_answered_is_not_asked_again(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    with roster.client() as client:
        client.fetch_call()
        client.listen(lambda heard: None)
        roster.end()
        roster.begin()
        roster.hears(0, Listen())
        client.join("", 60)
        roster.end()
        roster.begin()
        roster.hears(0, Listen())
        client.fetch_call()
        assert [type(each).__name__ for each in roster.of(0)] == ["Listen", "FetchCall"]


def test_an_answer_that_came_just_before_the_loss_counts(serve: Callable[..., Roster]) -> None:
    """Who asked has not even looked at it when the roster is found again."""

    class Slow(SimpleQueue[FromRoster | WireError]):
        def get(self, *arguments: object, **options: object) -> FromRoster | WireError:
            answer = super().get()
            assert looks.wait(SECONDS)
            return answer

    looks = threading.Event()
    roster = serve(1)
    client, _ = roster.listening()
    client._replies = Slow()
    with client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.join, "", 60)
        until(lambda: client._replies.qsize() == 0 and any("generation 1 begins" in line for line in roster.log))
        until(lambda: client._asked is None)
        roster.end()
        roster.begin()
        client.report_state(1)
        roster.hears(0, Holds(1))
        looks.set()
        assert waiting.result(SECONDS).generation == 1
        assert not any(isinstance(each, Join) for each in roster.of(0))


def test_a_roster_that_does_not_read_is_connected_to_again(serve: Callable[..., Roster]) -> None:
    """Half of a message may have gone out: nothing can follow it on that connection."""
    roster = serve(1)
    client, channel = roster.listening_through(Stuck)
    with client:
        channel.broken = True
        client.report_state(1)
        roster.hears(0, Holds(1))


def test_who_listens_hears_the_next_roster(serve: Callable[..., Roster]) -> None:
    roster = serve(2)
    client, heard = roster.listening(0)
    with client:
        for payload in (b"first", b"second", b"third"):
            with roster.client(1) as other:
                other.tell(0, payload)
            until(lambda payload=payload: Told(1, payload) in heard)
            roster.end()
            roster.begin()
            roster.hears(0, Listen())
        client.probe()
        until(lambda: isinstance(heard[-1], Probed))


def test_the_latest_of_what_stands_is_said_again_and_the_rest_is_not(serve: Callable[..., Roster]) -> None:
    roster = serve(elastic=Limits(1, 2))
    client, _ = roster.listening(0)
    with client:
        client.report_state(1)
        client.report_progress(1, 0.5)
        client.report_state(2)
        client.ask_to_leave("it is told so")
        roster.end()
        away(client)
        client.tell(1, b"x")
        client.probe()
        client.report_progress(2, 0.5)
        client.report_state(3)
        roster.begin()
        client.fetch_call()
        assert [type(each).__name__ for each in roster.of(0)][-1] == "FetchCall"
        assert roster.of(0)[:-1] == [Listen(), Holds(3), Leaving("it is told so")]


def test_a_failure_is_said_to_the_next_roster(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    client, _ = roster.listening()
    with client:
        roster.end()
        away(client)
        client.report_failure("Traceback ...", "ValueError: x")
        roster.begin()
        until(lambda: any("reports that it failed: ValueError: x" in line for line in roster.log))


def test_who_holds_another_secret_is_no_roster(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    client, _ = roster.listening()
    with client, ThreadPoolExecutor(1) as pool:
        roster.end()
        roster.begin(b"another")
        waiting = pool.submit(client.join, "", 60)
        time.sleep(0.2)
        assert not waiting.done() and roster.of(0) == []
        roster.end()
        roster.begin()
        assert waiting.result(SECONDS).size == 1


def test_a_member_that_connects_again_hears_what_counts_now(serve: Callable[..., Roster]) -> None:
    roster = serve(elastic=Limits(1, 2))
    roster.expect(0)
    client, heard = roster.listening(0)
    with client:
        client.join("", None)
        roster.expect(1)
        until(lambda: Coming(1) in heard)
        heard.clear()
        client._channel.close()  # The network: it is the same roster.
        until(lambda: Coming(1) in heard)
        assert roster.of(0).count(Listen()) == 2


def test_leaving_and_failing_do_no_harm_twice(serve: Callable[..., Roster]) -> None:
    roster = serve(elastic=Limits(1, 2, timeout=60.0))
    roster.expect(0, 1)
    first, second = roster.listening(0)[0], roster.listening(1)[0]
    with first, second, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.join, "", None)
        assert second.join("", None).size == waiting.result(SECONDS).size == 2
        first.leave(1)
        second.report_failure("", "ValueError: x")

        def decided(times: int) -> None:
            """Wait until what both said has had its effect, which is later than that it was heard."""
            for words in ("left generation 1", "reports that it failed"):
                until(lambda words=words: sum(words in line for line in roster.log) == times)

        decided(1)
        before = roster._service._state
        for client in (first, second):
            client._channel.close()
        decided(2)
        assert roster.of(0).count(Leave(1)) == 2 and len(roster.of(1)) == 5
        assert roster._service._state == before


def test_a_worker_that_is_started_while_the_roster_is_away_waits_for_it(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    roster.end()
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(roster.client)
        time.sleep(0.1)
        assert not connecting.done()
        roster.begin()
        with connecting.result(SECONDS) as client:
            assert client.join("", 60).size == 1


def test_a_roster_that_takes_the_first_connection_and_says_nothing_is_looked_for(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    roster.end()
    connect = partial(RosterClient.connect, roster.address, SECRET, worker=0, timeout=0.2)
    with ThreadPoolExecutor(1) as pool:
        with socket.create_server(parse_address(roster.address)) as silent:
            with pytest.raises(RosterUnreachable):
                connect()
            connecting = pool.submit(connect, patience=60.0)
            silent.settimeout(SECONDS)
            silent.accept()[0].close()
            taken, _ = silent.accept()
            time.sleep(0.3)
            assert not connecting.done()
        taken.close()
        roster.begin()
        with connecting.result(SECONDS) as client:
            assert client.join("", 60).size == 1


def test_a_roster_that_is_lost_before_its_client_listens_is_looked_for(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    with roster.client() as client:
        roster.end()
        for _ in range(2):  # The first is sent before this side knows.
            client.report_state(1)
            time.sleep(0.05)
        roster.begin()
        client.listen(lambda heard: None)
        assert client.join("", 60).size == 1
        assert [type(each) for each in roster.of(0)] == [Holds, Listen, Join]


# --- it does not come back ------------------------------------------------------------------------------------------


def test_patience_has_an_end(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    client, _ = roster.listening(patience=0.5)
    with client:
        began = time.monotonic()  # Before it can be noticed.
        roster.end()
        with pytest.raises(RosterUnreachable, match=r"looked for in vain for 0\.5 s .*refused.*launcher"):
            client.join("", None)
        assert 0.4 < time.monotonic() - began < 5
        for say in (client.probe, client.fetch_call, lambda: client.leave(1)):
            with pytest.raises(RosterUnreachable, match=r"looked for in vain for 0\.5 s"):
                say()
        began = time.monotonic()
    assert time.monotonic() - began < SECONDS / 2, "it is not looked for any more"


def test_a_roster_that_hangs_up_on_what_it_hears_is_not_found(serve: Callable[..., Roster]) -> None:
    """Such as one that ends of it, again and again."""
    roster = serve(1)
    client, _ = roster.listening(patience=2.0)
    with client:
        roster._service.hangs_up_on = Join
        with pytest.raises(RosterUnreachable, match=r"looked for in vain for 2 s"):
            client.join("", None)
        joins = sum(isinstance(each, Join) for each in roster.of(0))
        assert 2 < joins < 15, "every time it takes longer until the next"


def test_without_patience_the_loss_is_noticed_at_once(serve: Callable[..., Roster]) -> None:
    roster = serve(2)
    client, _ = roster.listening(0, patience=0.0)
    with client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.join, "", 60)
        until(lambda: any(isinstance(each, Join) for each in roster.of(0)))
        roster.end()
        began = time.monotonic()
        with pytest.raises(RosterUnreachable, match=r"lost the roster .* closed the connection\. Has the launcher"):
            waiting.result(SECONDS)
        assert time.monotonic() - began < SECONDS / 2
        roster.begin()
        with pytest.raises(RosterUnreachable):
            client.fetch_call()
    roster.end()
    with pytest.raises(RosterUnreachable, match="cannot reach the roster"):
        roster.client(patience=0.0)
    roster.begin()


# --- closing --------------------------------------------------------------------------------------------------------


def test_closing_while_it_is_looked_for_takes_no_time_and_ends_a_join(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    client, _ = roster.listening()
    client.report_state(1)
    roster.end()
    away(client)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.join, "", 60)
        until(lambda: client._asked is not None)
        began = time.monotonic()
        client.close()
        with pytest.raises(RosterUnreachable):
            waiting.result(SECONDS)
        assert time.monotonic() - began < SECONDS / 2
    assert client._listener is not None
    client._listener.join(SECONDS)
    assert not client._listener.is_alive()
    roster.begin()


def test_closing_does_not_wait_for_who_takes_a_connection_and_says_nothing(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    client, _ = roster.listening()
    client.report_state(1)
    roster.end()
    with (
        socket.create_server(parse_address(roster.address)) as silent,
        ThreadPoolExecutor(1) as pool,
    ):
        silent.settimeout(SECONDS)
        taken, _ = silent.accept()
        with taken:
            waiting = pool.submit(client.join, "", 60)
            until(lambda: client._asked is not None)
            time.sleep(0.05)  # It waits for the answer by now.
            began = time.monotonic()
            client.close()
            for say in (client.fetch_call, lambda: client.leave(1), lambda: waiting.result(SECONDS)):
                with pytest.raises(RosterUnreachable):
                    say()
            assert time.monotonic() - began < SECONDS / 2
    roster.begin()
    assert client._listener is not None
    client._listener.join(SECONDS)
    assert roster.of(0) == []


def test_an_attempt_that_succeeds_after_closing_says_nothing(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    client, _ = roster.listening()
    client.report_state(1)
    assert client._search is not None
    dial, tries, closed = client._search._dial, threading.Event(), threading.Event()

    def late(seconds: float) -> Channel:
        tries.set()
        assert closed.wait(SECONDS)
        return dial(seconds)

    client._search._dial = late
    roster.end()
    assert tries.wait(SECONDS)
    client.close()
    roster.begin()
    closed.set()
    assert client._listener is not None
    client._listener.join(SECONDS)
    time.sleep(0.05)
    assert not client._listener.is_alive() and roster.of(0) == []


def test_the_last_words_are_delivered_when_the_roster_comes_back_in_time(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    client, _ = roster.listening()
    client.report_state(1)
    roster.end()
    away(client)
    client.leave(3)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(client.close)
        time.sleep(0.1)
        assert not closing.done()
        roster.begin()
        closing.result(SECONDS / 2)
    roster.hears(0, Leave(3))
    assert roster.of(0) == [Holds(1), Leave(3)]


def test_the_last_words_are_not_waited_for_without_end(
    serve: Callable[..., Roster], monkeypatch: pytest.MonkeyPatch
) -> None:
    roster = serve(1)
    client, _ = roster.listening()
    roster.end()
    away(client)
    client.report_failure("", "ValueError: x")
    monkeypatch.setattr(roster_client, "ANSWER_SECONDS", 0.3)
    began = time.monotonic()
    client.close()
    assert 0.2 < time.monotonic() - began < 3
    assert client._listener is not None
    client._listener.join(SECONDS)
    assert not client._listener.is_alive()
    roster.begin()


# --- a join that is made again --------------------------------------------------------------------------------------


def speak(roster: Roster, worker: int, *messages: msgspec.Struct) -> Channel:
    """Open a connection that nobody ever closes, as far as the roster knows."""
    channel, codec = Channel.connect(roster.address, SECRET, timeout=SECONDS), Codec[object](Listen)
    for message in (Hello(worker), *messages):
        channel.send(codec.encode(message))
    return channel


def test_a_join_made_again_replaces_the_one_whose_connection_seems_open(serve: Callable[..., Roster]) -> None:
    roster = serve(2)

    def joins() -> int:
        return sum(line.startswith("rank 0 joined") for line in roster.log)

    older = speak(roster, 0, Join("old", 60.0))
    until(lambda: joins() == 1)
    patience = roster._service._connections.waiting[0].timer
    newer = speak(roster, 0, Listen(), Join("new", 60.0, again=True))
    until(lambda: joins() == 2)
    assert patience is not None and patience.cancelled(), "it would end the newer one's join"
    older.close()
    with roster.client(1) as other:
        assert other.join("c1", 60).contacts == ("new", "c1")
        assert b"world" in newer.receive(time.monotonic() + SECONDS)
        other.tell(0, b"to the newer one")
        assert b"to the newer one" in newer.receive(time.monotonic() + SECONDS)
    newer.close()
    lines = [line for line in roster.log if line.startswith("rank 0")]
    assert [line.split("; ")[0] for line in lines] == [
        "rank 0 joined",
        "rank 0 closed its connection and waits no more",
        "rank 0 joined",
    ]


def test_a_join_that_is_not_made_again_is_refused_while_another_waits(serve: Callable[..., Roster]) -> None:
    roster = serve(2)
    older = speak(roster, 0, Join("old", 60.0))
    until(lambda: len(roster.of(0)) == 1)
    newer = speak(roster, 0, Join("new", 60.0))
    assert b"joined twice" in newer.receive(time.monotonic() + SECONDS)
    with roster.client(1) as other:
        assert other.join("c1", 60).contacts == ("old", "c1")
    older.close()
    newer.close()


# --- SIGTERM --------------------------------------------------------------------------------------------------------


class NoEngine(Engine):
    """No notice of these tests gets as far."""

    def __init__(self) -> None:
        pass

    def __del__(self) -> None:
        pass


def test_a_wish_to_leave_waits_for_the_roster_and_the_grace_goes_on(
    serve: Callable[..., Roster], monkeypatch: pytest.MonkeyPatch
) -> None:
    kills: list[float] = []
    monkeypatch.setattr(worlds.os, "kill", lambda pid, number: kills.append(time.monotonic()))
    roster = serve(elastic=Limits(1, 2))
    client, _ = roster.listening()
    preemption = Preemption(client, Notices(NoEngine()), grace=0.5)
    try:
        roster.end()
        away(client)
        began = time.monotonic()
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.2)
        roster.begin()
        roster.hears(0, Leaving("it got SIGTERM"))
        until(lambda: bool(kills))
        assert kills[0] - began > 0.4
    finally:
        preemption.close()
        client.close()


def test_there_is_nobody_to_ask_when_the_patience_is_over(
    serve: Callable[..., Roster], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = threading.Event()
    monkeypatch.setattr(worlds.os, "kill", lambda pid, number: killed.set())
    roster = serve(1)
    client, _ = roster.listening(patience=0.1)
    preemption = Preemption(client, Notices(NoEngine()), grace=60.0)
    try:
        roster.end()
        with pytest.raises(RosterUnreachable) as caught:
            client.join("", None)
        assert isinstance(caught.value.__cause__, ConnectionLost)
        signal.raise_signal(signal.SIGTERM)
        assert killed.wait(SECONDS)
    finally:
        preemption.close()
        client.close()
    roster.begin()
