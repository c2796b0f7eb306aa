"""The client's end of the socket to a daemon: blocking, and made for signals that come while it waits."""

from __future__ import annotations

import collections
import os
import select
import socket
import time
from collections.abc import Sequence

import msgspec

from farandole.launcher.daemon.messages import MESSAGE_LIMIT, FromDaemon
from farandole.wire.errors import AuthenticationFailed, ConnectionLost, WireTimeout
from farandole.wire.frames import Codec, FrameReader, frame
from farandole.wire.peer_credentials import user_behind

_PIECE_BYTES = 1 << 16


def check_peer(sock: socket.socket) -> None:
    """Find out whether a process of this user is at the other end.

    Raises:
        AuthenticationFailed: it is somebody else's.
    """
    user = user_behind(sock)
    if user != os.geteuid():
        raise AuthenticationFailed(f"a process of user {user} is at the other end, not one of user {os.geteuid()}")


class DaemonConnection:
    """A connection to a daemon. `send` may also be called by a signal handler while `receive` waits.

    Args:
        sock: connected.
        alarm: a descriptor that can be read when a signal has come; without it, a signal that comes just before
            `receive` begins to wait is seen when a message comes.

    Attributes:
        unread: whether the daemon is gone and has not read all that was sent, as far as the kernel says so.
    """

    def __init__(self, sock: socket.socket, alarm: int | None = None) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._alarm = alarm
        self._codec: Codec[FromDaemon] = Codec(FromDaemon)
        self._frames = FrameReader(MESSAGE_LIMIT)
        self._received: collections.deque[bytes] = collections.deque()
        self.unread = False

    def send(self, message: msgspec.Struct, descriptors: Sequence[int] = ()) -> None:
        """Send a message, and descriptors with it.

        Raises:
            ConnectionLost: the daemon is gone.
        """
        data = frame(self._codec.encode(message))
        try:
            sent = socket.send_fds(self._sock, [data], list(descriptors)) if descriptors else 0
            self._sock.sendall(data[sent:])
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error.strerror or error}") from None

    def receive(self, deadline: float | None = None) -> FromDaemon:
        """Wait for a message; `deadline` is on the monotonic clock.

        Raises:
            ConnectionLost: the daemon is gone.
            WireTimeout: nothing came in time.
        """
        while not self._received:
            if not self._ready(deadline):
                continue
            try:
                data = self._sock.recv(_PIECE_BYTES)
            except OSError as error:
                self.unread = isinstance(error, ConnectionResetError)
                raise ConnectionLost(f"the connection broke: {error.strerror or error}") from None
            if not data:
                raise ConnectionLost("the other side closed the connection")
            self._received.extend(self._frames.feed(data))
        return self._codec.decode(self._received.popleft())

    def close(self) -> None:
        """Hang up."""
        self._sock.close()

    def _ready(self, deadline: float | None) -> bool:
        """Wait for something to read, or for a signal; say whether there is something to read."""
        alarms = [] if self._alarm is None else [self._alarm]
        patience = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = select.select([self._sock.fileno(), *alarms], [], [], patience)[0]
        if not ready:
            raise WireTimeout("the launcher of the job did not answer in time")
        for alarm in set(alarms).intersection(ready):
            os.read(alarm, _PIECE_BYTES)
        return self._sock.fileno() in ready
