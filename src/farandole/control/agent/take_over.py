"""`python -m farandole.control.agent.take_over`: connects a launcher to the agent on this host that has lost its own.

The first line of its standard input has the names of the sockets on which the agent may wait, separated by spaces. They
are secret: a process that binds the agent's next name first prevents the agent from waiting there. After that line,
bytes are passed between standard input and output and that agent, until either side ends.

It imports very little: the launcher waits for it while workers of the job use the processors.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

from farandole.control.agent.failover_socket import address_of, is_of_this_user

# Seconds within which the agent notices that its launcher is gone.
CONNECT_SECONDS = 5.0
_REST_SECONDS = 0.02
_CHUNK = 64 * 1024


def _read_names() -> list[str]:
    line = b""
    # Byte by byte, because everything after this line is for the agent.
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line.decode().split()


def find_agent(names: list[str]) -> socket.socket | None:
    """Return a connection to the agent that waits at one of these names; None if there is none."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while time.monotonic() < deadline:
        for name in names:
            if (connection := _connect(name)) is not None:
                return connection
        time.sleep(_REST_SECONDS)
    return None


def _connect(name: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)  # Another process may own the name by now, and never accept.
        connection.connect(address_of(name))
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
    """Pass bytes until either side ends."""
    connection = find_agent(_read_names())
    if connection is None:
        sys.exit("no agent of this job waits for a launcher any more")
    threading.Thread(target=_down_to_the_end, args=(connection,), daemon=True).start()
    try:
        _pass_up(connection)
    except OSError:
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
