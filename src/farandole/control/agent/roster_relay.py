"""Connects the workers of this host to the roster: a listener on loopback, relayed through the agent's pipe.

So the launcher opens no port to any network, and workers can reach it wherever ssh can. The bytes are passed on without
inspection: worker and roster authenticate each other.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from farandole.base.wire.address import format_address
from farandole.control.agent.event_loop import Loop
from farandole.control.agent.protocol import (
    WINDOW,
    FromAgent,
    RelayClosed,
    RelayCredit,
    Relayed,
    RelayedAgain,
    RelayOpened,
    RelayToAgent,
)

_CHUNK = 64 * 1024
_BACKLOG = 1024
_REST_SECONDS = 0.1


class _Link:
    """One connection of a worker."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self.connection = connection
        self.ahead = 0
        """Number of bytes that the launcher has not passed on yet."""
        self.unsent = bytearray()
        self.closing = False
        """Whether the roster has closed the connection, which closes once all data is sent."""


class RosterRelay:
    """A relay that serves while the agent lives.

    Args:
        loop: the event loop of the agent.
        say: sends a message to the launcher.
    """

    def __init__(self, loop: Loop, say: Callable[[FromAgent], None]) -> None:
        self._loop = loop
        self._say = say
        self._links: dict[int, _Link] = {}
        self._opened = 0
        self._kept = b""
        """The end of a frame: the launcher does not send it again for other frames that end in the same way."""
        self._serving = True
        """Whether there is a launcher."""
        self._listener = _listen_on_loopback()
        self._listen_again()

    @property
    def address(self) -> str:
        """host:port for the workers."""
        host, port = self._listener.getsockname()[:2]
        return format_address(host, port)

    def hang_up(self) -> None:
        """Close all connections and make new ones wait, because there is no launcher."""
        self._loop.watch(self._listener.fileno())
        self._serving = False
        for link in list(self._links.values()):
            self._close(link)

    def serve(self) -> None:
        """Accept connections again: there is another launcher."""
        self._serving = True
        self._listen_again()

    def carry_out(self, message: RelayToAgent) -> None:
        """Carry out an order about a connection, which may already be closed here."""
        if isinstance(message, Relayed) and message.kept:
            self._kept = message.data[-message.kept :]
        link = self._links.get(message.link)
        if link is None:
            return
        if isinstance(message, Relayed):
            link.unsent += message.data
            self._send(link)
        elif isinstance(message, RelayedAgain):
            link.unsent += message.data
            link.unsent += self._kept
            self._send(link)
        elif isinstance(message, RelayCredit):
            link.ahead -= message.count
            self._watch(link)
        else:
            link.closing = True
            self._send(link)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # It was closed before it was accepted; or no descriptor is left, and an immediate retry would spin.
            self._loop.watch(self._listener.fileno())
            self._loop.call_later(_REST_SECONDS, self._listen_again)
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opened += 1
        link = self._links[self._opened] = _Link(self._opened, connection)
        self._say(RelayOpened(link.number))
        self._watch(link)

    def _listen_again(self) -> None:
        if self._serving:
            self._loop.watch(self._listener.fileno(), self._accept)

    def _watch(self, link: _Link) -> None:
        reads = (lambda: self._receive(link)) if link.ahead < WINDOW else None
        writes = (lambda: self._send(link)) if link.unsent else None
        self._loop.watch(link.connection.fileno(), reads, writes)

    def _receive(self, link: _Link) -> None:
        try:
            data = link.connection.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(link)
            return
        link.ahead += len(data)
        self._say(Relayed(link.number, data))
        self._watch(link)

    def _send(self, link: _Link) -> None:
        sent = 0
        if link.unsent:
            try:
                sent = link.connection.send(link.unsent)
            except BlockingIOError:
                pass
            except OSError:
                self._close(link)
                return
        if sent:
            del link.unsent[:sent]
            self._say(RelayCredit(link.number, sent))
        if link.closing and not link.unsent:
            self._close(link)
        else:
            self._watch(link)

    def _close(self, link: _Link) -> None:
        del self._links[link.number]
        self._loop.watch(link.connection.fileno())
        link.connection.close()
        self._say(RelayClosed(link.number))


def _listen_on_loopback() -> socket.socket:
    try:
        return _listen(socket.AF_INET, "127.0.0.1")
    except OSError:
        return _listen(socket.AF_INET6, "::1")


def _listen(family: socket.AddressFamily, host: str) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((host, 0))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
