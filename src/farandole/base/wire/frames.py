"""Frames and messages: the protocol of two processes of a job over a byte stream.

A *frame* is a 4-byte little-endian length and that many bytes. A *message* is a tagged msgspec struct, encoded as
MessagePack (`wire.encoding`), in one frame.

Nothing here does I/O. `wire.frame_stream` carries frames over non-blocking connections, `wire.channel` waits for them,
and `wire.async_channel` carries them over asyncio's streams.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from farandole.base.wire import encoding
from farandole.base.wire.errors import BadMessage

LENGTH_BYTES = 4
FRAME_LIMIT = 64 * 1024 * 1024
LARGEST_FRAME = 2 ** (8 * LENGTH_BYTES) - 1

Message = TypeVar("Message")


def frame(payload: bytes) -> bytes:
    """Return the frame of a payload.

    Raises:
        BadMessage: the payload exceeds the range of the length field (4 GiB).
    """
    return frame_header(len(payload)) + payload


def frame_header(length: int) -> bytes:
    """Return the header of a frame with a payload of `length` bytes.

    Raises:
        BadMessage: the payload exceeds the range of the length field (4 GiB).
    """
    if length > LARGEST_FRAME:
        raise BadMessage(f"a message of {length} bytes does not fit into a frame ({LARGEST_FRAME} bytes at most)")
    return length.to_bytes(LENGTH_BYTES, "little")


def frame_length(header: bytes, limit: int) -> int:
    """Read the length from a frame's header.

    Raises:
        BadMessage: the frame is longer than `limit` bytes, and must not be read.
    """
    length = int.from_bytes(header, "little")
    if length > limit:
        raise BadMessage(f"a frame of {length} bytes was announced; at most {limit} are accepted here")
    return length


class FrameReader:
    """Splits a stream of bytes, fed piece by piece, into the payloads of its frames.

    Attributes:
        limit: length of the longest accepted frame, in bytes.
    """

    def __init__(self, limit: int = FRAME_LIMIT) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Append bytes to the stream, and return the payloads that are complete now.

        Raises:
            BadMessage: a frame longer than the limit begins. The stream cannot be used any more.
        """
        self._buffer += data
        payloads = []
        start = 0
        while len(self._buffer) - start >= LENGTH_BYTES:
            body = start + LENGTH_BYTES
            length = frame_length(bytes(self._buffer[start:body]), self.limit)
            if len(self._buffer) - body < length:
                break
            with memoryview(self._buffer) as whole:
                payloads.append(bytes(whole[body : body + length]))
            start = body + length
        del self._buffer[:start]
        return payloads


class Codec(Generic[Message]):
    """Encodes messages, and decodes those of one union of tagged structs.

    Example:
        >>> class Ping(msgspec.Struct, tag="ping"):
        ...     number: int
        >>> codec: Codec[Ping] = Codec(Ping)
        >>> codec.decode(codec.encode(Ping(3)))
        Ping(number=3)
    """

    def __init__(self, messages: Any) -> None:
        self._messages = messages

    def encode(self, message: msgspec.Struct) -> bytes:
        """Return a message as MessagePack."""
        return encoding.encode(message)

    def decode(self, payload: bytes) -> Message:
        """Return the message in a payload.

        Raises:
            BadMessage: the payload is not one of this codec's messages.
        """
        try:
            message: Message = encoding.decode(payload, self._messages)
        except msgspec.DecodeError as error:
            raise BadMessage(f"a frame of {len(payload)} bytes is not a valid message here: {error}") from None
        return message
