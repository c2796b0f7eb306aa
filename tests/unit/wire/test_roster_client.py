"""A client that loses the roster, which comes back: real sockets, a service in a thread that ends and begins again."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue

import msgspec
import pytest
from lost_rosters import SECONDS, SECRET, Dead, Roster, Stuck, away, until, without_contact

from farandole.base.wire import roster_client
from farandole.base.wire.address import parse_address
from farandole.base.wire.channel import Channel
from farandole.base.wire.errors import WireError
from farandole.base.wire.frames import Codec
from farandole.base.wire.rendezvous import (
    Coming,
    FromRoster,
    Hello,
    Holds,
    Join,
    Leave,
    Leaving,
    Listen,
    Probe,
    Probed,
    Relayed,
    RosterUnreachable,
)
from farandole.base.wire.roster_client import RosterClient
from farandole.control.roster.elastic import Limits


def test_waiting_join_is_answered_by_the_next_roster(serve: Callable[..., Roster]) -> None:
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


def test_join_without_roster_is_sent_to_the_next_one(serve: Callable[..., Roster]) -> None:
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


def test_messages_sent_into_a_dead_connection_are_repeated(serve: Callable[..., Roster]) -> None:
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


def test_answered_request_is_not_repeated(serve: Callable[..., Roster]) -> None:
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


def test_answer_just_before_the_loss_is_used(serve: Callable[..., Roster]) -> None:
    """The thread that asked has not even looked at it when the roster is found again."""

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


def test_client_reconnects_to_a_roster_that_does_not_read(serve: Callable[..., Roster]) -> None:
    """Half of a message may have gone out: nothing can follow it on that connection."""
    roster = serve(1)
    client, channel = roster.listening_through(Stuck)
    with client:
        channel.broken = True
        client.report_state(1)
        roster.hears(0, Holds(1))


def test_listener_gets_messages_of_the_next_roster(serve: Callable[..., Roster]) -> None:
    roster = serve(2)
    client, heard = roster.listening(0)
    with client:
        for payload in (b"first", b"second", b"third"):
            with roster.client(1) as other:
                other.relay(0, payload)
            until(lambda payload=payload: Relayed(1, payload) in heard)
            roster.end()
            roster.begin()
            roster.hears(0, Listen())
        client.probe()
        until(lambda: isinstance(heard[-1], Probed))


def test_only_latest_standing_messages_are_repeated(serve: Callable[..., Roster]) -> None:
    roster = serve(elastic=Limits(1, 2))
    client, _ = roster.listening(0)
    with client:
        client.report_state(1)
        client.report_progress(1, 0.5)
        client.report_state(2)
        client.ask_to_leave("it is told so")
        roster.end()
        away(client)
        client.relay(1, b"x")
        client.probe()
        client.report_progress(2, 0.5)
        client.report_state(3)
        roster.begin()
        client.fetch_call()
        assert [type(each).__name__ for each in roster.of(0)][-1] == "FetchCall"
        assert roster.of(0)[:-1] == [Listen(), Holds(3), Leaving("it is told so")]


def test_failure_is_reported_to_the_next_roster(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    client, _ = roster.listening()
    with client:
        roster.end()
        away(client)
        client.report_failure("Traceback ...", "ValueError: x")
        roster.begin()
        until(lambda: any("reports that it failed: ValueError: x" in line for line in roster.log))


def test_roster_with_another_secret_is_refused(serve: Callable[..., Roster]) -> None:
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


def test_reconnected_member_gets_the_current_notices(serve: Callable[..., Roster]) -> None:
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


def test_repeated_leave_and_failure_are_harmless(serve: Callable[..., Roster]) -> None:
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
        before = roster._service.state
        for client in (first, second):
            client._channel.close()
        decided(2)
        assert roster.of(0).count(Leave(1)) == 2 and len(roster.of(1)) == 5
        assert roster._service.state == before


def test_new_worker_waits_for_an_unavailable_roster(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    roster.end()
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(roster.client)
        time.sleep(0.1)
        assert not connecting.done()
        roster.begin()
        with connecting.result(SECONDS) as client:
            assert client.join("", 60).size == 1


def test_silent_roster_is_searched_for_after_the_first_connection(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    roster.end()
    connect = partial(RosterClient.connect, roster.address, SECRET, worker=0, timeout=0.2)
    with ThreadPoolExecutor(1) as pool:
        with socket.create_server(parse_address(roster.address)) as silent:
            with pytest.raises(RosterUnreachable):
                connect()
            connecting = pool.submit(connect, search_timeout=60.0)
            silent.settimeout(SECONDS)
            silent.accept()[0].close()
            taken, _ = silent.accept()
            time.sleep(0.3)
            assert not connecting.done()
        taken.close()
        roster.begin()
        with connecting.result(SECONDS) as client:
            assert client.join("", 60).size == 1


def test_roster_lost_before_listening_is_searched_for(serve: Callable[..., Roster]) -> None:
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


# --- a join that takes long -----------------------------------------------------------------------------------------


def test_join_waits_while_the_roster_answers_probes(
    serve: Callable[..., Roster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The roster waits for as long as workers arrive."""
    monkeypatch.setattr(roster_client, "ANSWER_SECONDS", 0.1)
    roster = serve(2)
    with roster.client(0) as client, roster.client(1) as other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.join, "", 60)
        until(lambda: sum(isinstance(each, Probe) for each in roster.of(0)) >= 3)
        other.join("", 60)
        assert waiting.result(SECONDS).size == 2


@pytest.mark.parametrize("listens", [False, True])
def test_join_fails_when_the_roster_is_stopped(
    serve: Callable[..., Roster], monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    monkeypatch.setattr(roster_client, "ANSWER_SECONDS", 0.1)
    roster = serve(2)
    with roster.client(0) as client:
        if listens:
            client.listen(lambda heard: None)
        resume = roster.stop()
        try:
            with pytest.raises(RosterUnreachable, match=r"did not answer within 0\.1 s"):
                client.join("", 60)
        finally:
            resume()


# --- a join that is made again --------------------------------------------------------------------------------------


def speak(roster: Roster, worker: int, *messages: msgspec.Struct) -> Channel:
    """Open a connection that, as far as the roster knows, is never closed."""
    channel, codec = Channel.connect(roster.address, SECRET, timeout=SECONDS), Codec[object](Listen)
    for message in (Hello(worker), *messages):
        channel.send(codec.encode(message))
    return channel


def test_repeated_join_replaces_the_one_on_a_stale_connection(serve: Callable[..., Roster]) -> None:
    roster = serve(2)

    def joins() -> int:
        return sum(line.startswith("rank 0 joined") for line in roster.log)

    older = speak(roster, 0, Join("old", 60.0))
    until(lambda: joins() == 1)
    newer = speak(roster, 0, Listen(), Join("new", 60.0, again=True))
    until(lambda: joins() == 2)
    older.close()
    with roster.client(1) as other:
        assert other.join("c1", 60).contacts == ("new", "c1")
        assert b"world" in newer.receive(time.monotonic() + SECONDS)
        other.relay(0, b"to the newer one")
        assert b"to the newer one" in newer.receive(time.monotonic() + SECONDS)
    newer.close()
    lines = [line for line in roster.log if line.startswith("rank 0")]
    assert [line.split("; ")[0] for line in lines] == [
        "rank 0 joined",
        "rank 0 closed its connection and no longer waits",
        "rank 0 joined",
    ]


def test_second_join_of_a_waiting_worker_is_refused(serve: Callable[..., Roster]) -> None:
    roster = serve(2)
    older = speak(roster, 0, Join("old", 60.0))
    until(lambda: len(roster.of(0)) == 1)
    newer = speak(roster, 0, Join("new", 60.0))
    assert b"joined twice" in newer.receive(time.monotonic() + SECONDS)
    with roster.client(1) as other:
        assert other.join("c1", 60).contacts == ("old", "c1")
    older.close()
    newer.close()
