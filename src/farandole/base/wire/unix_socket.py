"""Operations of Unix sockets alone: the process at the other end, and descriptors that travel along."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable

from farandole.base.wire.errors import BadMessage

MOST_DESCRIPTORS = 8
"""That may come, and wait for the message that they belong to."""

_CREDENTIALS = struct.Struct("3i")  # Process, user and group.


def user_behind(sock: socket.socket) -> int:
    """Return the number of the user whose process is at the other end, as the kernel says."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


class DescriptorSocket:
    """A Unix socket on which descriptors travel with the bytes; a `Source` and a `Sink` of frames.

    Args:
        sock: connected; belongs to this one now, and does not block any more.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._to_send: list[int] = []
        self._received: list[int] = []
        """Received, and not yet taken by the message that they belong to."""

    def attach(self, descriptors: Iterable[int]) -> None:
        """Send these with the next bytes."""
        self._to_send += descriptors

    def take(self, count: int) -> list[int]:
        """Return the next descriptors that came; they belong to the caller now.

        Raises:
            BadMessage: the message did not bring this number of them.
        """
        if len(self._received) < count:
            raise BadMessage("a message without the descriptors that belong to it")
        taken, self._received = self._received[:count], self._received[count:]
        return taken

    @property
    def has_too_many(self) -> bool:
        """Whether more descriptors wait than any message has: the other side sends them for nothing."""
        return len(self._received) > MOST_DESCRIPTORS

    def send(self, data: memoryview, /) -> int:
        """Send what can be sent now, and the attached descriptors, and return how many bytes that were."""
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
        """Close it, and the descriptors that nobody has taken."""
        self._sock.close()
        for descriptor in self._received:
            os.close(descriptor)
        self._received = []
