"""Blocking transfer of frames: over an authenticated TCP socket, a Unix socket, or pipes.

`Channel.connect` includes the handshake, and tries several addresses at once.
"""

from __future__ import annotations

import collections
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

from farandole.base.wire.address import parse_address
from farandole.base.wire.errors import AuthenticationFailed, BadMessage, ConnectionLost, WireError, WireTimeout
from farandole.base.wire.frame_stream import PIECE_BYTES, ByteSink, ByteSource, FrameStream
from farandole.base.wire.frames import FRAME_LIMIT
from farandole.base.wire.handshake import HANDSHAKE_LIMIT, ClientHandshake


class Channel:
    """Blocking transfer of frames. One thread may send while another receives.

    A signal handler may send at any time, even if it interrupts a `send`.

    After any `WireError` from `receive` or `send` the stream may be cut in the middle of a frame: close the channel.

    Args:
        source: source of the received bytes. It must not block.
        sink: sink of the sent bytes; may be the same object.
        limit: length of the longest accepted frame, in bytes.
        alarm: file descriptor that becomes readable when a signal arrives. Without it, the handler of a signal that
            arrives just before `receive` begins to wait is called only when something else arrives.
    """

    def __init__(self, source: ByteSource, sink: ByteSink, limit: int, alarm: int | None = None) -> None:
        self._stream = FrameStream(source, sink, limit)
        self._received: collections.deque[bytes] = collections.deque()
        self._alarm = alarm

    @classmethod
    def over(cls, sock: socket.socket, limit: int) -> Channel:
        """Return a channel over a socket, which it owns from now on."""
        # Not settimeout: it is one value for both directions, and two threads may wait with different deadlines.
        sock.setblocking(False)
        return cls(sock, sock, limit)

    @classmethod
    def connect(cls, address: str, secret: bytes, *, timeout: float, limit: int = FRAME_LIMIT) -> Channel:
        """Connect to `host:port`, including the handshake.

        Args:
            address: address, or several separated by commas: all are tried at once, and the first authenticated one is
                used.
            secret: the job's secret.
            timeout: seconds to wait for the connection.
            limit: length of the longest accepted frame, in bytes.

        Raises:
            ConnectionLost: nothing listens there, or the other side closed the connection.
            AuthenticationFailed: the other side does not hold the secret.
            WireTimeout: there is no authenticated connection after `timeout` seconds.
        """
        channel = _race(cls, address.split(","), secret, timeout)
        channel._stream.accept_up_to(limit)
        return channel

    def send(self, payload: bytes, deadline: float | None = None) -> None:
        """Send one frame; `deadline` is on the monotonic clock.

        Raises:
            ConnectionLost: the other side closed the connection, or it broke.
            WireTimeout: the other side did not read it before the deadline.
        """
        self._stream.post(payload)
        if self._stream.flushing:
            return  # The caller is a signal handler that interrupted a `send`, which then sends this frame as well.
        while self._stream.unsent:
            self._stream.flush()
            if self._stream.unsent:
                self._wait(self._stream.sink, select.POLLOUT, deadline)

    def receive(self, deadline: float | None = None) -> bytes:
        """Wait for one frame and return its payload; `deadline` is on the monotonic clock.

        Raises:
            ConnectionLost: the other side closed the connection, or it broke.
            WireTimeout: the deadline passed.
            BadMessage: the frame is too long.
        """
        while not self._received:
            payloads = self._stream.read()
            if payloads is None:
                self._wait(self._stream.source, select.POLLIN, deadline)
            else:
                self._received.extend(payloads)
        return self._received.popleft()

    def release(self) -> socket.socket:
        """Return the socket in blocking mode. The caller owns it from now on.

        Raises:
            BadMessage: there are received frames that were not read.
        """
        if self._received:
            raise BadMessage("the other side has sent more than was expected")
        sock = self._underlying()
        sock.setblocking(True)
        return sock

    def watch_over(self, seconds: int) -> None:
        """Make the kernel detect within `seconds` that the other machine, or the route to it, is gone."""
        sock = self._underlying()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, seconds - 2))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)

    def _underlying(self) -> socket.socket:
        sock = self._stream.source
        assert isinstance(sock, socket.socket)
        return sock

    def close(self) -> None:
        """Close gracefully: data that was sent still arrives. Wakes up a thread that waits in `receive`."""
        sock = self._stream.source
        assert isinstance(sock, socket.socket)
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The other side has closed it before.
        sock.close()

    def _wait(self, end: ByteSource | ByteSink, event: int, deadline: float | None) -> None:
        """Wait until an end is ready, or a signal has arrived.

        Raises:
            ConnectionLost: this side has closed the connection.
            WireTimeout: the deadline has passed.
        """
        poll = select.poll()
        try:
            poll.register(end, event)
        except ValueError:
            raise ConnectionLost("this side closed the connection") from None
        if self._alarm is not None:
            poll.register(self._alarm, select.POLLIN)
        milliseconds = None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
        ready = poll.poll(milliseconds)
        if not ready:
            raise WireTimeout("the other side did not answer in time")
        if any(fd == self._alarm for fd, _ in ready):
            assert self._alarm is not None
            os.read(self._alarm, PIECE_BYTES)


class _Attempt:
    """An attempt to connect to one address. It never blocks: `proceed` is called when its socket is ready."""

    def __init__(self, kind: type[Channel], address: str, family: int, where: Any, secret: bytes) -> None:
        self.address = address
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.channel = kind.over(self.socket, HANDSHAKE_LIMIT)
        self.connected = False
        self._handshake = ClientHandshake(secret)
        # The kernel reports the outcome when the socket is ready.
        self.socket.connect_ex(where)

    def proceed(self) -> bool:
        """Take the next step, and return whether the handshake is complete.

        Raises:
            WireError: the attempt has failed.
        """
        if not self.connected:
            number = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                raise ConnectionLost(f"no connection to {self.address}: {os.strerror(number)}")
            self.connected = True
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.channel.send(self._handshake.hello())  # So little fits into the buffer of a new socket.
            return False
        # Read no more than a challenge: the limit of the handshake must not apply to later frames.
        challenges = self.channel._stream.read(HANDSHAKE_LIMIT)
        if challenges:
            self.channel.send(self._handshake.answer(challenges[0]))
        return bool(challenges)


def _begin(kind: type[Channel], address: str, secret: bytes) -> list[_Attempt]:
    """Begin to connect to every address that a name resolves to.

    Raises:
        ConnectionLost: the name is unknown, or there is no route to any address, such as in a kernel without IPv6.
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
    """Try all addresses at once, return the channel that is authenticated first, and close the others."""
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
    """Return one error for all attempts, of the most informative kind: that of an address that answered, if any did."""
    order = (AuthenticationFailed, BadMessage, WireTimeout, ConnectionLost)
    kind = next(kind for kind in order if any(isinstance(failure, kind) for failure in failures))
    return kind("; ".join(dict.fromkeys(str(failure) for failure in failures)))
