"""A client whose roster does not come back in time, or that is closed meanwhile."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from lost_rosters import SECONDS, Roster, away, until

from farandole.base.wire import roster_client
from farandole.base.wire.address import parse_address
from farandole.base.wire.channel import Channel
from farandole.base.wire.errors import ConnectionLost
from farandole.base.wire.rendezvous import (
    Holds,
    Join,
    Leave,
    Leaving,
    RosterUnreachable,
)
from farandole.control.roster.elastic import Limits
from farandole.worker.core import worlds
from farandole.worker.core.engine import Engine
from farandole.worker.core.worlds import Notices, Preemption


def test_search_ends_after_its_limit(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    client, _ = roster.listening(search_timeout=0.5)
    with client:
        began = time.monotonic()  # Before it can be noticed.
        roster.end()
        with pytest.raises(RosterUnreachable, match=r"not be found again within 0\.5 s .*refused.*launcher"):
            client.join("", None)
        assert 0.4 < time.monotonic() - began < SECONDS / 2
        for say in (client.probe, client.fetch_call, lambda: client.leave(1)):
            with pytest.raises(RosterUnreachable, match=r"not be found again within 0\.5 s"):
                say()
        began = time.monotonic()
    assert time.monotonic() - began < SECONDS / 2, "it is not looked for any more"


def test_roster_that_closes_every_connection_is_not_found(serve: Callable[..., Roster]) -> None:
    """Such as one that ends of it, again and again."""
    roster = serve(1)
    client, _ = roster.listening(search_timeout=0.5)
    with client:
        roster._service.hangs_up_on = Join
        with pytest.raises(RosterUnreachable, match=r"not be found again within 0\.5 s"):
            client.join("", None)


def test_search_for_roster_that_closes_every_connection_becomes_slower(serve: Callable[..., Roster]) -> None:
    roster = serve(1)
    client, _ = roster.listening()
    with client, ThreadPoolExecutor(1) as pool:
        roster._service.hangs_up_on = Join
        began = time.monotonic()
        waiting = pool.submit(client.join, "", None)
        until(lambda: sum(isinstance(each, Join) for each in roster.of(0)) >= 6)
        assert time.monotonic() - began > 0.02 + 0.04 + 0.08 + 0.16 + 0.32
        client.close()
        with pytest.raises(RosterUnreachable):
            waiting.result(SECONDS)


def test_loss_is_reported_at_once_without_search(serve: Callable[..., Roster]) -> None:
    roster = serve(2)
    client, _ = roster.listening(0, search_timeout=0.0)
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
        roster.client(search_timeout=0.0)
    roster.begin()


# --- closing --------------------------------------------------------------------------------------------------------


def test_close_during_search_is_immediate_and_ends_a_join(serve: Callable[..., Roster]) -> None:
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


def test_close_does_not_wait_for_a_silent_roster(serve: Callable[..., Roster]) -> None:
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


def test_connection_made_after_close_sends_nothing(serve: Callable[..., Roster]) -> None:
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


def test_last_messages_are_delivered_when_the_roster_returns_in_time(serve: Callable[..., Roster]) -> None:
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


def test_wait_for_delivery_of_last_messages_is_limited(
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
    assert 0.2 < time.monotonic() - began < SECONDS / 2
    assert client._listener is not None
    client._listener.join(SECONDS)
    assert not client._listener.is_alive()
    roster.begin()


# --- SIGTERM --------------------------------------------------------------------------------------------------------


class NoEngine(Engine):
    """No notice of these tests gets as far."""

    def __init__(self) -> None:
        pass

    def __del__(self) -> None:
        pass


def test_leave_request_waits_for_the_roster_while_the_grace_runs(
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


def test_requests_fail_when_the_search_is_over(serve: Callable[..., Roster], monkeypatch: pytest.MonkeyPatch) -> None:
    killed = threading.Event()
    monkeypatch.setattr(worlds.os, "kill", lambda pid, number: killed.set())
    roster = serve(1)
    client, _ = roster.listening(search_timeout=0.1)
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
