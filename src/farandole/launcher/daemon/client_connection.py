"""The daemon's end of the connection to one client. Nothing here waits: who does not read costs memory only."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import msgspec

from farandole.launcher.daemon.messages import MESSAGE_LIMIT, FromClient
from farandole.wire.errors import BadMessage, WireError
from farandole.wire.frames import Codec, FrameReader, frame

_PIECE_BYTES = 1 << 16
MOST_DESCRIPTORS = 8


class ClientConnection:
    """One client.

    Args:
        sock: connected to it; belongs to the peer now.
        take: called with the peer and each of its messages; may raise BadMessage.
        gone: called once, when it has hung up or was hung up on.
    """

    def __init__(
        self,
        sock: socket.socket,
        take: Callable[[ClientConnection, FromClient], None],
        gone: Callable[[ClientConnection], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._take = take
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._codec: Codec[FromClient] = Codec(FromClient)
        self._frames = FrameReader(MESSAGE_LIMIT)
        self._descriptors: list[int] = []
        """Received, and not yet taken by the message that they belong to."""
        self._unsent = bytearray()
        self._sent = asyncio.Event()
        self._sent.set()
        self.open = True
        """Whether the connection stands."""
        self._loop.add_reader(sock, self._read)

    def take_descriptors(self, count: int) -> list[int]:
        """Return the descriptors that belong to the message that is being taken.

        Raises:
            BadMessage: they did not come with it.
        """
        if len(self._descriptors) < count:
            raise BadMessage("a message without the descriptors that belong to it")
        taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return taken

    def post(self, message: msgspec.Struct) -> None:
        """Send without waiting; no-op when it has hung up."""
        if self.open:
            self._unsent += frame(self._codec.encode(message))
            self._sent.clear()
            self._write()

    async def all_sent(self, seconds: float) -> bool:
        """Wait until the kernel has all that was posted; False when it does not take it in time, or cannot."""
        try:
            await asyncio.wait_for(self._sent.wait(), seconds)
        except (TimeoutError, asyncio.TimeoutError):
            return False
        return not self._unsent

    def close(self) -> None:
        """Hang up."""
        if not self.open:
            return
        self.open = False
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._sent.set()
        self._gone(self)

    def _read(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._sock, _PIECE_BYTES, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            return self.close()
        self._descriptors += descriptors
        try:
            for payload in self._frames.feed(data):
                self._take(self, self._codec.decode(payload))
        except WireError:
            return self.close()
        if not data or len(self._descriptors) > MOST_DESCRIPTORS:
            self.close()

    def _write(self) -> None:
        try:
            del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            return self.close()
        if self._unsent:
            self._loop.add_writer(self._sock, self._write)
        else:
            self._loop.remove_writer(self._sock)
            self._sent.set()
