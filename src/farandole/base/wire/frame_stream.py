"""Frames over a non-blocking connection: buffers for unsent frames and for the incomplete incoming frame.

A stream has no event loop and never waits. Its owner decides when to read and when to send: `wire.channel` with `poll`,
an agent with its own loop, the job daemon with asyncio. (`wire.async_channel` is for asyncio's streams, which have
buffers of their own.)
"""

from __future__ import annotations

import collections
import os
from typing import Protocol

from farandole.base.wire.errors import ConnectionLost
from farandole.base.wire.frames import FrameReader, frame

PIECE_BYTES = 64 * 1024
"""Largest number of bytes that one `read` takes, so that it returns to its caller soon."""


class ByteSource(Protocol):
    """A source of bytes: a socket, or one end of a pipe. It must not block."""

    def recv(self, count: int, /) -> bytes:
        """Return at most this number of bytes; none at the end."""

    def fileno(self) -> int:
        """Return its descriptor, or -1 when it is closed."""


class ByteSink(Protocol):
    """A sink of bytes: a socket, or one end of a pipe. It must not block."""

    def send(self, data: memoryview, /) -> int:
        """Send as many bytes as possible now, and return their number."""

    def fileno(self) -> int:
        """Return its descriptor, or -1 when it is closed."""


class PipeEnd:
    """One end of a pipe in non-blocking mode. It does not own the descriptor."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd

    def recv(self, count: int, /) -> bytes:
        """Return at most this number of bytes; none at the end."""
        return os.read(self._fd, count)

    def send(self, data: memoryview, /) -> int:
        """Write as many bytes as fit, and return their number."""
        return os.write(self._fd, data)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd


class FrameStream:
    """Frames in both directions. One thread may read while another one sends.

    After any `WireError` the stream may be cut in the middle of a frame, and must not be used any more.

    Args:
        source: source of the received bytes.
        sink: sink of the sent bytes; may be the same object.
        limit: length of the longest accepted frame, in bytes.
    """

    def __init__(self, source: ByteSource, sink: ByteSink, limit: int) -> None:
        self.source = source
        self.sink = sink
        self._reader = FrameReader(limit)
        self._unsent: collections.deque[memoryview] = collections.deque()
        self._flushing = False

    def accept_up_to(self, limit: int) -> None:
        """Accept frames of up to `limit` bytes from now on, such as after the handshake."""
        self._reader.limit = limit

    # --- sending -------------------------------------------------------------------------------------------------

    @property
    def unsent(self) -> bool:
        """Whether anything still waits to be sent."""
        return bool(self._unsent)

    @property
    def flushing(self) -> bool:
        """Whether `flush` is running, so that the caller is a signal handler that interrupted it."""
        return self._flushing

    def post(self, payload: bytes) -> None:
        """Append a frame to the data that `flush` sends."""
        self.post_bytes(frame(payload))

    def post_bytes(self, data: bytes) -> None:
        """Send bytes outside of any frame, such as a greeting before the first one."""
        self._unsent.append(memoryview(data))

    def flush(self) -> None:
        """Send as much as the other side accepts now. No-op if a `flush` is running already, which then sends it.

        Raises:
            ConnectionLost: the connection broke.
        """
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._unsent:
                # The head of the queue changes only here, so that no frame is sent twice.
                sent = self.sink.send(self._unsent[0])
                if sent == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][sent:]
        except BlockingIOError:
            return
        except OSError as error:
            raise _broken(error) from None
        finally:
            self._flushing = False

    # --- reading -------------------------------------------------------------------------------------------------

    def read(self, count: int = PIECE_BYTES) -> list[bytes] | None:
        """Read once, at most `count` bytes, and return the payloads that are complete now; None: nothing has arrived.

        Raises:
            ConnectionLost: the other side closed the connection, or it broke.
            BadMessage: a frame longer than the limit begins.
        """
        try:
            data = self.source.recv(count)
        except BlockingIOError:
            return None
        except OSError as error:
            raise _broken(error) from None
        if not data:
            raise ConnectionLost("the other side closed the connection")
        return self._reader.feed(data)


def _broken(error: OSError) -> ConnectionLost:
    loss = ConnectionLost(f"the connection broke: {error.strerror or error}")
    loss.unread = isinstance(error, ConnectionResetError)
    return loss
