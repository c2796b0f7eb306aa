"""What only Unix sockets can do."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from farandole.base.wire.errors import BadMessage
from farandole.base.wire.frame_stream import FrameStream
from farandole.base.wire.unix_socket import MOST_DESCRIPTORS, DescriptorSocket, user_behind

LIMIT = 1024


@pytest.fixture
def pair() -> Iterator[tuple[DescriptorSocket, DescriptorSocket]]:
    here, there = map(DescriptorSocket, socket.socketpair())
    yield here, there
    here.close()
    there.close()


def test_user_behind_a_unix_socket() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert user_behind(here) == os.geteuid()


def test_descriptors_arrive_with_their_message(pair: tuple[DescriptorSocket, DescriptorSocket]) -> None:
    here, there = pair
    sender, receiver = FrameStream(here, here, LIMIT), FrameStream(there, there, LIMIT)
    read_end, write_end = os.pipe()
    here.attach([write_end])
    sender.post(b"take this")
    sender.flush()
    sender.post(b"without")
    sender.flush()
    payloads: list[bytes] = []
    while len(payloads) < 2:
        payloads += receiver.read() or []
    assert payloads == [b"take this", b"without"]
    (received,) = there.take(1)
    os.write(received, b"x")
    assert os.read(read_end, 1) == b"x"
    with pytest.raises(BadMessage, match="without the descriptors"):
        there.take(1)
    for fd in (read_end, write_end, received):
        os.close(fd)


def test_unclaimed_descriptors_are_bounded_and_closed(pair: tuple[DescriptorSocket, DescriptorSocket]) -> None:
    here, there = pair
    read_end, write_end = os.pipe()
    for _ in range(2):
        here.attach([write_end] * MOST_DESCRIPTORS)
        here.send(memoryview(b"x"))
        there.recv(1)
    assert there.has_too_many
    os.close(write_end)
    there.close()
    assert os.read(read_end, 1) == b""  # Every copy is closed.
    os.close(read_end)
