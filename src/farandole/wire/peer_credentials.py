"""Whose process is at the other end of a Unix socket, as the kernel says."""

from __future__ import annotations

import socket
import struct

_CREDENTIALS = struct.Struct("3i")  # Process, user and group.


def user_behind(sock: socket.socket) -> int:
    """Return the number of the user whose process is at the other end."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])
