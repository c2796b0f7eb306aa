"""The daemon's end of the connection to one client. It never waits: a client that does not read costs memory only."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import msgspec

from farandole.base.wire.errors import WireError
from farandole.base.wire.frame_stream import FrameStream
from farandole.base.wire.frames import Codec
from farandole.base.wire.unix_socket import DescriptorSocket
from farandole.control.launcher.daemon.client_protocol import MESSAGE_LIMIT, FromClient


class ClientConnection:
    """One client.

    Args:
        sock: connected to it; belongs to this connection now.
        take: called with this connection and each of the client's messages; may raise BadMessage.
        gone: called once, when either side has closed it.
    """

    def __init__(
        self,
        sock: socket.socket,
        take: Callable[[ClientConnection, FromClient], None],
        gone: Callable[[ClientConnection], None],
    ) -> None:
        self._sock = DescriptorSocket(sock)
        self._stream = FrameStream(self._sock, self._sock, MESSAGE_LIMIT)
        self._take = take
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._codec: Codec[FromClient] = Codec(FromClient)
        self._sent = asyncio.Event()
        """Set while nothing is waiting to be sent."""
        self._sent.set()
        self.open = True
        """Whether the connection stands."""
        self._loop.add_reader(self._sock, self._read)

    def take_descriptors(self, count: int) -> list[int]:
        """Return the descriptors that belong to the message that is being taken.

        Raises:
            BadMessage: they did not come with it.
        """
        return self._sock.take(count)

    def post(self, message: msgspec.Struct) -> None:
        """Send without waiting; no-op when the connection is closed."""
        if self.open:
            self._stream.post(self._codec.encode(message))
            self._sent.clear()
            self._write()

    async def all_sent(self, seconds: float) -> bool:
        """Wait until the kernel has all that was posted; False when it does not take it in time, or cannot."""
        try:
            await asyncio.wait_for(self._sent.wait(), seconds)
        except (TimeoutError, asyncio.TimeoutError):
            return False
        return not self._stream.unsent

    def close(self) -> None:
        """Close the connection; no-op when it is closed."""
        if not self.open:
            return
        self.open = False
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._sent.set()
        self._gone(self)

    def _read(self) -> None:
        try:
            for payload in self._stream.read() or ():
                self._take(self, self._codec.decode(payload))
        except WireError:
            return self.close()
        if self._sock.has_too_many:
            self.close()

    def _write(self) -> None:
        try:
            self._stream.flush()
        except WireError:
            return self.close()
        if self._stream.unsent:
            self._loop.add_writer(self._sock, self._write)
        else:
            self._loop.remove_writer(self._sock)
            self._sent.set()
