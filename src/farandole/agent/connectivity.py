"""Finds out which hosts of a job reach each other: some open a door on each of their addresses, the others knock.

Whoever opens a door says a random token first: the address 172.17.0.1 is many a machine's own.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable

from farandole.agent.loop import Loop
from farandole.agent.protocol import (
    ConnectOutcome,
    ConnectTarget,
    ConnectTried,
    FromAgent,
    OpenPorts,
    PortsOpened,
    TryConnect,
)

_TOKEN_BYTES = 16
_BACKLOG = 1024
# When a host has answered at one address, its others get so much longer.
_GRACE_SECONDS = 0.25


class ConnectListeners:
    """The open ones of this host."""

    def __init__(self, loop: Loop, say: Callable[[FromAgent], None]) -> None:
        self._loop = loop
        self._say = say
        self._token = os.urandom(_TOKEN_BYTES)
        self._listeners: list[socket.socket] = []

    def open(self, order: OpenPorts) -> None:
        """Listen on every address."""
        self._say(PortsOpened(order.number, tuple(map(self._listen, order.addresses)), self._token))

    def close(self) -> None:
        """Listen no more; no-op when nothing is open."""
        for listener in self._listeners:
            self._loop.watch(listener.fileno())
            listener.close()
        self._listeners.clear()

    def _listen(self, address: str) -> int:
        try:
            family, resolved = resolve(address, 0)
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            return 0
        try:
            listener.bind(resolved)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            return 0
        listener.setblocking(False)
        self._listeners.append(listener)
        self._loop.watch(listener.fileno(), lambda: self._answer(listener))
        port: int = listener.getsockname()[1]
        return port

    def _answer(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.setblocking(False)
            try:
                connection.send(self._token)
            except OSError:
                pass  # It hung up: then it learns nothing.


class ConnectRound:
    """One round of knocking, which answers by itself."""

    def __init__(self, loop: Loop, say: Callable[[FromAgent], None], order: TryConnect) -> None:
        self._loop = loop
        self._say = say
        self._order = order
        self._begun = time.monotonic()
        self._waiting: dict[ConnectTarget, socket.socket] = {}
        self._answers: list[ConnectOutcome] = []
        self._timer = loop.call_later(order.seconds, self._end)
        for door in order.doors:
            self._knock(door)
        self._look()

    def _knock(self, door: ConnectTarget) -> None:
        try:
            family, resolved = resolve(door.address, door.port)
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._note(door, error.strerror or str(error))
            return
        connection.setblocking(False)
        code = connection.connect_ex(resolved)
        if code not in (0, errno.EINPROGRESS):
            connection.close()
            self._note(door, os.strerror(code))
            return
        self._waiting[door] = connection
        self._loop.watch(connection.fileno(), lambda: self._hear(door))

    def _hear(self, door: ConnectTarget) -> None:
        connection = self._waiting[door]
        try:
            token = connection.recv(_TOKEN_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._settle(door, error.strerror or str(error))
        else:
            self._settle(door, "" if token == door.token else "another machine answers there")
        self._look()

    def _settle(self, door: ConnectTarget, trouble: str) -> None:
        connection = self._waiting.pop(door)
        self._loop.watch(connection.fileno())
        connection.close()
        self._note(door, trouble)

    def _note(self, door: ConnectTarget, trouble: str) -> None:
        self._answers.append(ConnectOutcome(door.host, door.address, time.monotonic() - self._begun, trouble))

    def _look(self) -> None:
        """Do not wait long for the other addresses of hosts that have answered."""
        if not self._waiting:
            self._end()
            return
        reached = {answer.host for answer in self._answers if not answer.trouble}
        if all(door.host in reached for door in self._waiting):
            self._timer.cancel()
            self._timer = self._loop.call_later(_GRACE_SECONDS, self._end)

    def _end(self) -> None:
        self._timer.cancel()
        for door in list(self._waiting):
            self._settle(door, f"no answer within {time.monotonic() - self._begun:.1f} s")
        self._say(ConnectTried(self._order.number, tuple(self._answers)))


def resolve(address: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]:
    """Return family and socket address of an IPv4 or IPv6 address in numbers.

    Raises:
        OSError: it is none.
    """
    hints = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    family, _, _, _, resolved = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=hints)[0]
    return family, resolved  # type: ignore[return-value]
