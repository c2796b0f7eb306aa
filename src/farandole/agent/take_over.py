"""`python -m farandole.agent.take_over`: takes a launcher to the agent on this host that has lost its own.

The first line of its standard input are the doors at which the agent may wait, with a space between them. They are
nobody else's to know: who is at the agent's next door before it keeps it from waiting there. Then bytes are passed on
between standard input and output and that agent, until either side ends.
It imports next to nothing: people wait for it, beside workers that want the processors.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

from farandole.agent.failover_socket import address_of, is_of_this_user

# The agent notices within that time that its launcher is gone.
PATIENCE_SECONDS = 5.0
_REST_SECONDS = 0.02
_CHUNK = 64 * 1024


def _read_doors() -> list[str]:
    line = b""
    # One by one: what follows is the agent's.
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line.decode().split()


def _find(doors: list[str]) -> socket.socket | None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for door in doors:
            if (connection := _connect(door)) is not None:
                return connection
        time.sleep(_REST_SECONDS)
    return None


def _connect(door: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)  # Somebody else may be there by now, and let nobody in.
        connection.connect(address_of(door))
        if is_of_this_user(connection):
            connection.setblocking(True)
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _pass_down(connection: socket.socket) -> None:
    while data := os.read(0, _CHUNK):
        connection.sendall(data)


def _pass_up(connection: socket.socket) -> None:
    while data := connection.recv(_CHUNK):
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]


def _down_to_the_end(connection: socket.socket) -> None:
    try:
        _pass_down(connection)
    except OSError:
        pass
    # The launcher is gone, or the agent: the other direction has nothing to wait for.
    os._exit(0)


def main() -> None:
    """Pass bytes on to the end."""
    connection = _find(_read_doors())
    if connection is None:
        sys.exit("there is no agent of this job any more that waits for a launcher")
    threading.Thread(target=_down_to_the_end, args=(connection,), daemon=True).start()
    try:
        _pass_up(connection)
    except OSError:
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
