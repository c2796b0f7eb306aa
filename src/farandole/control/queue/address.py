"""Where a queue keeps its state, and so where it is reached."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "FARANDOLE_QUEUE"
"""Names the state directory of the queue that is meant."""
OF_ALL = Path("/var/lib/farandole/queue")
"""Of a queue that root runs for all users of a machine."""


def of_user(environment: Mapping[str, str]) -> Path:
    """Return the state directory of a queue that a user runs."""
    state = environment.get("XDG_STATE_HOME", "")
    return Path(state if os.path.isabs(state) else os.path.expanduser("~/.local/state")) / "farandole" / "queue"


def default_state(environment: Mapping[str, str]) -> Path:
    """Return the state directory of a queue that this process starts."""
    if named := environment.get(VARIABLE):
        return Path(named)
    return OF_ALL if os.geteuid() == 0 else of_user(environment)


def find(environment: Mapping[str, str]) -> Path | None:
    """Return the state directory of the queue that is there: the named one, this user's, or that of all users.

    A queue that has not been named, and that nothing serves at the moment, does not hide another one.
    """
    if named := environment.get(VARIABLE):
        return Path(named)
    there = [state for state in (of_user(environment), OF_ALL) if os.path.exists(socket_of(state))]
    return next((state for state in there if why_away(state) is None), next(iter(there), None))


def socket_of(state: Path) -> Path:
    return state / "socket"


def connect_socket(state: Path, seconds: float) -> socket.socket:
    """Return a socket that is connected to a queue's daemon, whose operations take at most this many seconds each.

    Raises:
        OSError: nothing listens there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        directory = os.open(state, os.O_PATH | os.O_DIRECTORY)
        try:
            sock.connect(f"/proc/self/fd/{directory}/socket")  # An address of a socket has 107 bytes at most.
        finally:
            os.close(directory)
    except BaseException:
        sock.close()
        raise
    return sock


def why_away(state: Path) -> OSError | None:
    """Return why a queue's daemon cannot be connected to now; None: it listens."""
    try:
        connect_socket(state, seconds=1.0).close()
    except OSError as error:
        return error
    return None


def is_there(environment: Mapping[str, str]) -> bool:
    """Return whether there is a queue that commands mean by default."""
    return find(environment) is not None
