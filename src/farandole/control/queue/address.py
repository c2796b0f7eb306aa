"""The location of a queue: its state directory, which holds the socket that its daemon listens on."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "FARANDOLE_QUEUE"
"""Names the state directory of the queue that commands use."""
SHARED_STATE = Path("/var/lib/farandole/queue")
"""The state directory of a queue that root runs for all users of a machine."""
DATABASE = "queue.db"
"""The file in the state directory of every queue that was ever started there."""


def user_state(environment: Mapping[str, str]) -> Path:
    """Return the state directory of a queue that a user runs."""
    state = environment.get("XDG_STATE_HOME", "")
    return Path(state if os.path.isabs(state) else os.path.expanduser("~/.local/state")) / "farandole" / "queue"


def default_state(environment: Mapping[str, str]) -> Path:
    """Return the state directory of a queue that this process starts."""
    if named := environment.get(VARIABLE):
        return Path(named)
    return SHARED_STATE if os.geteuid() == 0 else user_state(environment)


def find(environment: Mapping[str, str]) -> Path | None:
    """Return the state directory of the queue that exists: the named one, this user's, or the one of all users.

    An unnamed queue without a running daemon does not hide another queue.
    """
    if named := environment.get(VARIABLE):
        return Path(named)
    there = [state for state in (user_state(environment), SHARED_STATE) if os.path.exists(socket_of(state))]
    return next((state for state in there if connection_error(state) is None), next(iter(there), None))


def socket_of(state: Path) -> Path:
    return state / "socket"


def connect_socket(state: Path, seconds: float) -> socket.socket:
    """Return a socket that is connected to a queue's daemon.

    Args:
        state: the queue's state directory.
        seconds: timeout of each operation on the socket.

    Raises:
        OSError: nothing listens there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        directory = os.open(state, os.O_PATH | os.O_DIRECTORY)
        try:
            sock.connect(f"/proc/self/fd/{directory}/socket")  # The address of a Unix socket has 107 bytes at most.
        finally:
            os.close(directory)
    except BaseException:
        sock.close()
        raise
    return sock


def connection_error(state: Path) -> OSError | None:
    """Return the error with which a connection to a queue's daemon fails now; None if it succeeds."""
    try:
        connect_socket(state, seconds=1.0).close()
    except OSError as error:
        return error
    return None


def exists(environment: Mapping[str, str]) -> bool:
    """Return whether there is a queue that commands use by default."""
    return find(environment) is not None
