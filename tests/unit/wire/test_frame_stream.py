"""Frames over connections that do not block: socket pairs and pipes, nothing waits."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from farandole.base.wire.errors import BadMessage, ConnectionLost
from farandole.base.wire.frame_stream import FrameStream, PipeEnd
from farandole.base.wire.frames import frame

LIMIT = 1 << 20


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        there.setblocking(False)
        yield here, there


class Narrow:
    """A sink that takes a few bytes at a time, and now and then none."""

    def __init__(self, width: int) -> None:
        self.taken = bytearray()
        self._width = width
        self._calls = 0

    def send(self, data: memoryview) -> int:
        self._calls += 1
        if self._calls % 3 == 0:
            raise BlockingIOError
        self.taken += data[: self._width]
        return min(self._width, len(data))

    def fileno(self) -> int:
        return -1


def read_all(stream: FrameStream, count: int) -> list[bytes]:
    payloads: list[bytes] = []
    while len(payloads) < count:
        payloads += stream.read() or []
    return payloads


@pytest.mark.parametrize("width", [1, 3, 1000])
def test_frames_are_sent_in_order_through_a_slow_sink(width: int) -> None:
    sink = Narrow(width)
    stream = FrameStream(socket.socket(), sink, LIMIT)
    payloads = [b"", b"a", b"bc" * 100]
    for payload in payloads:
        stream.post(payload)
    while stream.unsent:
        stream.flush()
    assert bytes(sink.taken) == b"".join(map(frame, payloads))
    stream.source.close()  # type: ignore[attr-defined]


def test_unsent_rest_stays_buffered_when_the_socket_is_full(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    sender, receiver = FrameStream(here, here, LIMIT), FrameStream(there, there, LIMIT)
    payloads = [bytes([number]) * 200_000 for number in range(5)]
    for payload in payloads:
        sender.post(payload)
    sender.flush()
    assert sender.unsent
    received: list[bytes] = []
    while len(received) < len(payloads):
        received += receiver.read() or []
        sender.flush()
    assert received == payloads and not sender.unsent


def test_a_post_from_within_a_flush_is_sent_by_that_flush() -> None:
    """As by the handler of a signal that comes while bytes are being sent."""

    class Interrupted(Narrow):
        def send(self, data: memoryview) -> int:
            if not self.taken:
                sent = super().send(data[:2])
                stream.post(b"second")
                assert stream.flushing
                stream.flush()
                return sent
            return super().send(data)

    sink = Interrupted(1000)
    with socket.socket() as source:
        stream = FrameStream(source, sink, LIMIT)
        stream.post(b"first")
        while stream.unsent:
            stream.flush()
    assert bytes(sink.taken) == frame(b"first") + frame(b"second")


def test_no_data_is_distinguished_from_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    stream = FrameStream(here, here, LIMIT)
    assert stream.read() is None
    there.sendall(frame(b"whole") + frame(b"cut")[:-1])
    assert stream.read() == [b"whole"]
    assert stream.read() is None
    there.sendall(b"t")
    assert stream.read() == [b"cut"]


def test_frame_over_the_limit_is_refused_from_its_header(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    stream = FrameStream(here, here, 10)
    there.sendall((11).to_bytes(4, "little"))
    with pytest.raises(BadMessage, match="11 bytes was announced; at most 10"):
        stream.read()


def test_limit_may_be_raised_after_the_handshake(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    stream = FrameStream(here, here, 10)
    stream.accept_up_to(11)
    there.sendall(frame(b"x" * 11))
    assert stream.read() == [b"x" * 11]


def test_end_of_stream_is_a_lost_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    stream = FrameStream(here, here, LIMIT)
    there.close()
    with pytest.raises(ConnectionLost, match="closed the connection") as caught:
        stream.read()
    assert not caught.value.unread
    stream.post(b"too late")
    with pytest.raises(ConnectionLost, match="the connection broke"):
        stream.flush()


def test_unread_data_is_reported_by_the_kernel(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    stream = FrameStream(here, here, LIMIT)
    stream.post(b"never read")
    stream.flush()
    there.close()
    with pytest.raises(ConnectionLost) as caught:
        stream.read()
    assert caught.value.unread


def test_pipes_carry_frames_and_bytes_before_them() -> None:
    read_end, write_end = os.pipe()
    try:
        stream = FrameStream(PipeEnd(read_end), PipeEnd(write_end), LIMIT)
        assert stream.read() is None
        stream.post_bytes(frame(b"greeting"))
        stream.post(b"payload")
        stream.flush()
        assert read_all(stream, 2) == [b"greeting", b"payload"]
    finally:
        os.close(read_end)
        os.close(write_end)
