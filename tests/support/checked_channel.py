"""The roster's end of a connection without a socket."""

from __future__ import annotations

from farandole.base.wire.async_channel import AsyncChannel
from farandole.base.wire.frames import Codec
from farandole.base.wire.rendezvous import FromRoster


class CheckedChannel(AsyncChannel):
    """A connection on which only messages of a roster may be sent.

    Attributes:
        sent: the messages that were sent.
        is_lost: whether the other side has closed it.
    """

    def __init__(self) -> None:
        self.sent: list[FromRoster] = []
        self.is_lost = False
        self._codec: Codec[FromRoster] = Codec(FromRoster)

    async def send(self, payload: bytes) -> None:
        self.post(payload)

    def post(self, payload: bytes, shared: bytes = b"") -> None:
        self.sent.append(self._codec.decode(payload + shared))

    def is_closing(self) -> bool:
        return self.is_lost

    def backlog(self) -> int:
        return 0

    def close(self) -> None:
        pass
