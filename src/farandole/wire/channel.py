"""A proven connection over a blocking socket, and the race of several addresses for it."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

from farandole.wire.address import parse_address
from farandole.wire.errors import AuthenticationFailed, BadMessage, ConnectionLost, WireError, WireTimeout
from farandole.wire.frames import FRAME_LIMIT, LENGTH_BYTES, FrameReader, frame, frame_length
from farandole.wire.handshake import HANDSHAKE_LIMIT, ClientHandshake


class Channel:
    """A proven connection over a blocking socket. One thread may send while another receives.

    After any `WireError` from `receive` or `send` the stream may be cut in the middle of a frame: close the channel.
    """

    def __init__(self, sock: socket.socket, limit: int) -> None:
        # Not settimeout: it is one value for both directions, and two threads may wait with different deadlines.
        sock.setblocking(False)
        self._sock = sock
        self._limit = limit

    @classmethod
    def connect(cls, address: str, secret: bytes, *, timeout: float, limit: int = FRAME_LIMIT) -> Channel:
        """Connect to `host:port` and prove both sides to each other.

        Args:
            address: or several, separated by commas: all are tried at once, and the first that proves itself is taken.
            secret: the job's.
            timeout: seconds.
            limit: longest frame that will be taken, in bytes.

        Raises:
            ConnectionLost: nobody listens there, or the other side hung up.
            AuthenticationFailed: the other side does not hold the secret.
            WireTimeout: not done within `timeout` seconds.
        """
        channel = _race(cls, address.split(","), secret, timeout)
        channel._limit = limit
        return channel

    def send(self, payload: bytes, deadline: float | None = None) -> None:
        """Send one frame; `deadline` is on the monotonic clock."""
        view = memoryview(frame(payload))
        while view:
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)
            except OSError as error:
                raise ConnectionLost(f"the connection broke: {error.strerror or error}") from None

    def receive(self, deadline: float | None = None) -> bytes:
        """Wait for one frame and return its payload; `deadline` is on the monotonic clock."""
        length = frame_length(self._read(LENGTH_BYTES, deadline), self._limit)
        return self._read(length, deadline)

    def close(self) -> None:
        """Close in good order: what was sent still arrives. Wakes a thread that waits in `receive`."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The other side was quicker.
        self._sock.close()

    def _read(self, count: int, deadline: float | None) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                piece = self._sock.recv(min(count - len(data), 1 << 20))
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
                continue
            except OSError as error:
                raise ConnectionLost(f"the connection broke: {error.strerror or error}") from None
            if not piece:
                raise ConnectionLost("the other side closed the connection")
            data += piece
        return bytes(data)

    def _wait(self, event: int, deadline: float | None) -> None:
        poll = select.poll()
        try:
            poll.register(self._sock, event)
        except ValueError:
            raise ConnectionLost("this side closed the connection") from None
        milliseconds = None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
        if not poll.poll(milliseconds):
            raise WireTimeout("the other side did not answer in time")


class _Attempt:
    """One address on its way to a proven connection. Never waits: `proceed` is called when its socket is ready."""

    def __init__(self, kind: type[Channel], address: str, family: int, where: Any, secret: bytes) -> None:
        self.address = address
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.channel = kind(self.socket, HANDSHAKE_LIMIT)
        self.connected = False
        self._handshake = ClientHandshake(secret)
        self._frames = FrameReader(HANDSHAKE_LIMIT)
        # What becomes of it is asked when the socket is ready.
        self.socket.connect_ex(where)

    def proceed(self) -> bool:
        """Take the next step; True when both sides are proven.

        Raises:
            WireError: it leads nowhere.
        """
        if not self.connected:
            number = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                raise ConnectionLost(f"no connection to {self.address}: {os.strerror(number)}")
            self.connected = True
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.channel.send(self._handshake.hello())  # A fresh socket takes so little at once.
            return False
        try:
            data = self.socket.recv(HANDSHAKE_LIMIT)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error.strerror or error}") from None
        if not data:
            raise ConnectionLost("the other side closed the connection")
        challenges = self._frames.feed(data)
        if challenges:
            self.channel.send(self._handshake.answer(challenges[0]))
        return bool(challenges)


def _begin(kind: type[Channel], address: str, secret: bytes) -> list[_Attempt]:
    """Begin to connect to everything that a name stands for.

    Raises:
        ConnectionLost: the name is not known, or there is no way to any of it, such as in a kernel without IPv6.
    """
    host, port = parse_address(address)
    attempts = []
    try:
        for family, _, _, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            attempts.append(_Attempt(kind, address, family, where, secret))
    except OSError as error:
        if not attempts:
            raise ConnectionLost(f"no connection to {address}: {error.strerror or error}") from None
    return attempts


def _race(kind: type[Channel], addresses: Sequence[str], secret: bytes, timeout: float) -> Channel:
    """Try all addresses at once, return the channel that is proven first, and close the others."""
    deadline = time.monotonic() + timeout
    poll = select.poll()
    racing: dict[int, _Attempt] = {}
    failures: list[WireError] = []
    winner = None
    try:
        for address in addresses:
            try:
                for attempt in _begin(kind, address, secret):
                    racing[attempt.socket.fileno()] = attempt
                    poll.register(attempt.socket, select.POLLOUT)
            except ConnectionLost as failure:
                failures.append(failure)
        while racing:
            ready = poll.poll(max(0.0, (deadline - time.monotonic()) * 1000))
            if not ready:
                raise _best_known([*failures, *(_late(attempt, timeout) for attempt in racing.values())])
            for fd, _ in ready:
                try:
                    if racing[fd].proceed():
                        winner = racing[fd].channel
                        return winner
                    poll.modify(fd, select.POLLIN)
                except WireError as failure:
                    failures.append(failure)
                    poll.unregister(fd)
                    racing.pop(fd).socket.close()
        raise _best_known(failures)
    finally:
        for attempt in racing.values():
            if attempt.channel is not winner:
                attempt.socket.close()


def _late(attempt: _Attempt, timeout: float) -> WireError:
    if attempt.connected:
        return WireTimeout("the other side did not answer in time")
    return WireTimeout(f"no connection to {attempt.address} within {timeout:g} s")


def _best_known(failures: Sequence[WireError]) -> WireError:
    """Return one error for all attempts: who has answered tells more than who has not."""
    order = (AuthenticationFailed, BadMessage, WireTimeout, ConnectionLost)
    kind = next(kind for kind in order if any(isinstance(failure, kind) for failure in failures))
    return kind("; ".join(dict.fromkeys(str(failure) for failure in failures)))
