"""The daemon's end of the connection to one client. It never blocks: a client that does not read costs memory only."""

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
    """The connection to one client.

    Args:
        sock: a connected socket, which belongs to this object from now on.
        take: called with this connection and each of the client's messages; may raise BadMessage.
        gone: called once, when either side has closed the connection.
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
        """Set while no data waits to be sent."""
        self._sent.set()
        self.open = True
        """Whether the connection is open."""
        self._loop.add_reader(self._sock, self._read)

    def take_descriptors(self, count: int) -> list[int]:
        """Return the descriptors that belong to the current message.

        Raises:
            BadMessage: the message came without them.
        """
        return self._sock.take(count)

    def post(self, message: msgspec.Struct) -> None:
        """Send without waiting; no-op if the connection is closed."""
        if self.open:
            self._stream.post(self._codec.encode(message))
            self._sent.clear()
            self._write()

    async def all_sent(self, seconds: float) -> bool:
        """Wait until the kernel has accepted all data; return False if it has not within `seconds`, or cannot."""
        try:
            await asyncio.wait_for(self._sent.wait(), seconds)
        except (TimeoutError, asyncio.TimeoutError):
            return False
        return not self._stream.unsent

    def close(self) -> None:
        """Close the connection; no-op if it is closed."""
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
