"""The socket on which an agent that has lost its launcher accepts the next one.

It is an abstract Unix socket, which leaves no file behind and can only be reached in this host's network namespace. Its
name is random, but any process on this host can read the names of sockets in use. So no name is used twice, and the
agent accepts a connection only if the kernel reports a process of the same user at the other end.
"""

from __future__ import annotations

import os
import socket

from farandole.base.wire.unix_socket import user_behind


def address_of(name: str) -> str:
    """Return the address at which the agent with this socket name waits."""
    return f"\0farandole-agent-{name}"


def is_of_this_user(sock: socket.socket) -> bool:
    """Return whether a process of this user is at the other end: any user may connect to such an address."""
    return user_behind(sock) == os.geteuid()
