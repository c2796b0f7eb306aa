"""The client's end of the socket to a daemon. It blocks, and signals may arrive meanwhile."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import msgspec

from farandole.base.wire.channel import Channel
from farandole.base.wire.errors import AuthenticationFailed, ConnectionLost, WireTimeout
from farandole.base.wire.frames import Codec
from farandole.base.wire.unix_socket import DescriptorSocket, user_behind
from farandole.control.launcher.daemon.client_protocol import MESSAGE_LIMIT, FromDaemon


def check_peer(sock: socket.socket) -> None:
    """Check that a process of this user is at the other end.

    Raises:
        AuthenticationFailed: it belongs to another user.
    """
    user = user_behind(sock)
    if user != os.geteuid():
        raise AuthenticationFailed(f"a process of user {user} is at the other end, not one of user {os.geteuid()}")


class DaemonConnection:
    """A connection to a daemon. `send` may also be called by a signal handler while `receive` waits.

    Args:
        sock: a connected socket.
        alarm: as in `Channel`.

    Attributes:
        unread: whether the daemon is gone and has not read all messages, according to the kernel.
    """

    def __init__(self, sock: socket.socket, alarm: int | None = None) -> None:
        self._sock = DescriptorSocket(sock)
        self._channel = Channel(self._sock, self._sock, MESSAGE_LIMIT, alarm)
        self._codec: Codec[FromDaemon] = Codec(FromDaemon)
        self.unread = False

    def send(self, message: msgspec.Struct, descriptors: Sequence[int] = ()) -> None:
        """Send a message, with descriptors.

        Raises:
            ConnectionLost: the daemon is gone.
        """
        self._sock.attach(descriptors)
        self._channel.send(self._codec.encode(message))

    def receive(self, deadline: float | None = None) -> FromDaemon:
        """Wait for a message; `deadline` is on the monotonic clock.

        Raises:
            ConnectionLost: the daemon is gone.
            WireTimeout: no message arrived in time.
        """
        try:
            return self._codec.decode(self._channel.receive(deadline))
        except WireTimeout:
            raise WireTimeout("the launcher of the job did not answer in time") from None
        except ConnectionLost as error:
            self.unread = error.unread
            raise

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()
