"""Frames that are waited for, over socket pairs and loopback. The roster's tests race several addresses."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from farandole.base.wire.address import format_address
from farandole.base.wire.channel import Channel
from farandole.base.wire.errors import BadMessage, ConnectionLost, WireTimeout
from farandole.base.wire.frame_stream import PipeEnd
from farandole.base.wire.frames import frame
from farandole.base.wire.handshake import HANDSHAKE_LIMIT

LIMIT = 1 << 24


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_large_frames_go_both_ways_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = (Channel.over(each, LIMIT) for each in pair)
    payload = os.urandom(5_000_000)
    echo = threading.Thread(target=lambda: there.send(there.receive()))
    echo.start()
    here.send(payload)
    assert here.receive() == payload
    echo.join()


def test_frames_that_come_together_are_received_one_by_one(pair: tuple[socket.socket, socket.socket]) -> None:
    channel = Channel.over(pair[0], LIMIT)
    pair[1].sendall(frame(b"one") + frame(b"") + frame(b"three"))
    assert [channel.receive() for _ in range(3)] == [b"one", b"", b"three"]


def test_deadlines(pair: tuple[socket.socket, socket.socket]) -> None:
    channel = Channel.over(pair[0], LIMIT)
    with pytest.raises(WireTimeout, match="did not answer in time"):
        channel.receive(time.monotonic() + 0.01)
    with pytest.raises(WireTimeout, match="did not answer in time"):
        channel.send(bytes(5_000_000), time.monotonic() + 0.01)


def test_close_wakes_waiting_threads(pair: tuple[socket.socket, socket.socket]) -> None:
    channel = Channel.over(pair[0], LIMIT)
    closer = threading.Timer(0.05, channel.close)
    closer.start()
    with pytest.raises(ConnectionLost):
        channel.receive()
    closer.join()
    with pytest.raises(ConnectionLost):
        channel.receive()
    with pytest.raises(ConnectionLost):
        channel.send(b"")


def test_alarm_is_read_without_ending_the_wait(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    here.setblocking(False)
    alarm, ring = os.pipe()
    try:
        channel = Channel(here, here, LIMIT, alarm)
        os.write(ring, b"\x0f")

        def answer_after_the_alarm() -> None:
            end = time.monotonic() + 60
            while select.select([alarm], [], [], 0)[0] and time.monotonic() < end:
                time.sleep(0.001)
            there.sendall(frame(b"answer"))

        answer = threading.Thread(target=answer_after_the_alarm)
        answer.start()
        assert channel.receive() == b"answer"
        assert not select.select([alarm], [], [], 0)[0]
        answer.join()
    finally:
        os.close(alarm)
        os.close(ring)


def test_pipes() -> None:
    (child_in, to_child), (from_child, child_out) = os.pipe(), os.pipe()
    try:
        ours = Channel(PipeEnd(from_child), PipeEnd(to_child), LIMIT)
        theirs = Channel(PipeEnd(child_in), PipeEnd(child_out), LIMIT)
        ours.send(b"order")
        assert theirs.receive() == b"order"
        theirs.send(b"answer")
        assert ours.receive() == b"answer"
        os.close(child_out)
        with pytest.raises(ConnectionLost, match="closed the connection"):
            ours.receive()
    finally:
        for fd in (child_in, to_child, from_child):
            os.close(fd)


def served(reply: bytes) -> str:
    """Return the address of a server that answers the first connection with these bytes."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as connection:
            connection.recv(1024)
            connection.sendall(reply)
            with contextlib.suppress(ConnectionResetError):
                connection.recv(1024)  # Until the client hangs up.

    threading.Thread(target=serve, daemon=True).start()
    return format_address(*server.getsockname())


def test_unauthenticated_server_is_read_only_up_to_handshake_limit() -> None:
    with pytest.raises(BadMessage, match=f"at most {HANDSHAKE_LIMIT} are accepted"):
        Channel.connect(served(frame(bytes(HANDSHAKE_LIMIT + 1))), bytes(32), timeout=10)
