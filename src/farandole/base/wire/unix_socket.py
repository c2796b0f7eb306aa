"""Features of Unix sockets: credentials of the peer, and passing of file descriptors."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable

from farandole.base.wire.errors import BadMessage

MOST_DESCRIPTORS = 8
"""Largest number of received descriptors that may wait for their message."""

_CREDENTIALS = struct.Struct("3i")  # Process, user and group.


def user_behind(sock: socket.socket) -> int:
    """Return the user id of the process at the other end, as reported by the kernel."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


class DescriptorSocket:
    """A Unix socket that sends descriptors with the bytes; a `ByteSource` and a `ByteSink` of frames.

    Args:
        sock: a connected socket, which belongs to this object from now on and becomes non-blocking.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._to_send: list[int] = []
        self._received: list[int] = []
        """Received descriptors whose message has not taken them yet."""

    def attach(self, descriptors: Iterable[int]) -> None:
        """Send descriptors with the next bytes."""
        self._to_send += descriptors

    def take(self, count: int) -> list[int]:
        """Return the next `count` received descriptors, which belong to the caller from now on.

        Raises:
            BadMessage: fewer descriptors came with the message.
        """
        if len(self._received) < count:
            raise BadMessage("a message without the descriptors that belong to it")
        taken, self._received = self._received[:count], self._received[count:]
        return taken

    @property
    def has_too_many(self) -> bool:
        """Whether more descriptors wait than any message has, so that the other side violates the protocol."""
        return len(self._received) > MOST_DESCRIPTORS

    def send(self, data: memoryview, /) -> int:
        """Send as many bytes as possible now, with the attached descriptors, and return their number."""
        if not self._to_send:
            return self._sock.send(data)
        sent = socket.send_fds(self._sock, [data], self._to_send)
        self._to_send = []
        return sent

    def recv(self, count: int, /) -> bytes:
        """Return at most this number of bytes; none at the end."""
        data, descriptors, _, _ = socket.recv_fds(self._sock, count, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        self._received += descriptors
        return data

    def fileno(self) -> int:
        """Return the socket's descriptor, or -1 when it is closed."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the socket, and the descriptors that no message has taken."""
        self._sock.close()
        for descriptor in self._received:
            os.close(descriptor)
        self._received = []
