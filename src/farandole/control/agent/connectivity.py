"""Checks which hosts of a job can connect to each other: some listen on all their addresses, the others connect.

The listening side first sends a random token, because many machines have the address 172.17.0.1.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable

from farandole.control.agent.connectivity_messages import (
    ConnectOutcome,
    ConnectTarget,
    ConnectTried,
    OpenPorts,
    PortsOpened,
    TryConnect,
)
from farandole.control.agent.event_loop import Loop
from farandole.control.agent.protocol import FromAgent

_TOKEN_BYTES = 16
_BACKLOG = 1024
# Seconds to wait for a host's other addresses once one has answered.
_GRACE_SECONDS = 0.25


class ConnectListeners:
    """Listening sockets on the addresses of this host, open while hosts are checked."""

    def __init__(self, loop: Loop, say: Callable[[FromAgent], None]) -> None:
        self._loop = loop
        self._say = say
        self._token = os.urandom(_TOKEN_BYTES)
        self._listeners: list[socket.socket] = []

    def open(self, order: OpenPorts) -> None:
        """Listen on every address."""
        self._say(PortsOpened(order.number, tuple(map(self._listen, order.addresses)), self._token))

    def close(self) -> None:
        """Stop listening; no-op if it is not listening."""
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
                pass  # It has closed the connection.


class ConnectRound:
    """Connects to all targets of one order at once, and sends the answer."""

    def __init__(self, loop: Loop, say: Callable[[FromAgent], None], order: TryConnect) -> None:
        self._loop = loop
        self._say = say
        self._order = order
        self._begun = time.monotonic()
        self._waiting: dict[ConnectTarget, socket.socket] = {}
        self._answers: list[ConnectOutcome] = []
        self._timer = loop.call_later(order.seconds, self._end)
        for target in order.targets:
            self._connect(target)
        self._limit_wait()

    def _connect(self, target: ConnectTarget) -> None:
        try:
            family, resolved = resolve(target.address, target.port)
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._note(target, error.strerror or str(error))
            return
        connection.setblocking(False)
        code = connection.connect_ex(resolved)
        if code not in (0, errno.EINPROGRESS):
            connection.close()
            self._note(target, os.strerror(code))
            return
        self._waiting[target] = connection
        self._loop.watch(connection.fileno(), lambda: self._receive_token(target))

    def _receive_token(self, target: ConnectTarget) -> None:
        connection = self._waiting[target]
        try:
            token = connection.recv(_TOKEN_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._settle(target, error.strerror or str(error))
        else:
            self._settle(target, "" if token == target.token else "another machine answers there")
        self._limit_wait()

    def _settle(self, target: ConnectTarget, trouble: str) -> None:
        connection = self._waiting.pop(target)
        self._loop.watch(connection.fileno())
        connection.close()
        self._note(target, trouble)

    def _note(self, target: ConnectTarget, trouble: str) -> None:
        self._answers.append(ConnectOutcome(target.host, target.address, time.monotonic() - self._begun, trouble))

    def _limit_wait(self) -> None:
        """Limit the wait for the other addresses of hosts that have answered."""
        if not self._waiting:
            self._end()
            return
        reached = {answer.host for answer in self._answers if not answer.trouble}
        if all(target.host in reached for target in self._waiting):
            self._timer.cancel()
            self._timer = self._loop.call_later(_GRACE_SECONDS, self._end)

    def _end(self) -> None:
        self._timer.cancel()
        for target in list(self._waiting):
            self._settle(target, f"no answer within {time.monotonic() - self._begun:.1f} s")
        self._say(ConnectTried(self._order.number, tuple(self._answers)))


def resolve(address: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]:
    """Return family and socket address of a numeric IPv4 or IPv6 address.

    Raises:
        OSError: the address is not valid.
    """
    hints = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    family, _, _, _, resolved = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=hints)[0]
    return family, resolved  # type: ignore[return-value]
