"""Where an agent that has lost its launcher lets the next one in.

The way in is an abstract Unix socket, which has no file that could be left behind, and is seen from this host's network
only. Its name is the door's, which nobody can guess; anybody on this host can read it once it was used. So no door is
used twice; and who is let in is decided by the kernel's word for which user is at the other end.
"""

from __future__ import annotations

import os
import socket

from farandole.wire.unix_socket import user_behind


def address_of(door: str) -> str:
    """Return the address at which an agent waits."""
    return f"\0farandole-agent-{door}"


def is_of_this_user(sock: socket.socket) -> bool:
    """Say whether a process of this user is at the other end: anybody may use any address."""
    return user_behind(sock) == os.geteuid()
