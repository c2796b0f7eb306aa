"""Frames, messages and proof: how two processes of one job talk over a byte stream.

A *frame* is a 4-byte little-endian length and that many bytes. A *message* is a tagged msgspec struct, encoded as
MessagePack, in one frame. On a socket both sides first prove that they hold the job's secret; until then a frame may
only be `HANDSHAKE_LIMIT` bytes long, has a fixed layout and is never decoded.

    client                                         server
    hello      PROTOCOL, client nonce        ->
               <-  challenge  server nonce, HMAC(secret, "server", both nonces)
    proof      HMAC(secret, "client", both nonces) ->

The server proves itself first, so a client never sends anything but a nonce to a stranger. Both nonces are fresh and
both sides are named in what is hashed: neither a recording nor a reflection of the other side's proof is worth
anything. Frames after the handshake are not encrypted and not signed one by one.

Nothing here does I/O: `core.channel` drives it over a blocking socket, `core.async_channel` over asyncio streams.

Errors:

    WireError (ConnectionError)
    ├── ConnectionLost         the other side closed, or the network broke
    ├── AuthenticationFailed   the other side does not hold this job's secret
    ├── BadMessage             a frame is too long, or is not a message that belongs here
    └── WireTimeout            nothing came in time; also a TimeoutError
"""

from __future__ import annotations

import os
from typing import Any, Generic, TypeVar

import msgspec

PROTOCOL = b"farandole roster 1\n"
NONCE_BYTES = 32
PROOF_BYTES = 32  # of SHA-256
LENGTH_BYTES = 4
HANDSHAKE_LIMIT = 128
FRAME_LIMIT = 64 * 1024 * 1024
LARGEST_FRAME = 2 ** (8 * LENGTH_BYTES) - 1
HANDSHAKE_SECONDS = 10.0

Message = TypeVar("Message")


class WireError(ConnectionError):
    """Something on the way between two processes of a job went wrong."""


class ConnectionLost(WireError):
    """The other side closed the connection, or the network broke."""


class AuthenticationFailed(WireError):
    """The other side does not hold this job's secret."""


class BadMessage(WireError):
    """A frame is too long, or is not a message that belongs here."""


class WireTimeout(WireError, TimeoutError):
    """Nothing came in time."""


# --- frames and messages -----------------------------------------------------------------------------------


def frame(payload: bytes) -> bytes:
    """Put a payload into a frame.

    Raises:
        BadMessage: the payload is longer than the length field can say (4 GiB).
    """
    if len(payload) > LARGEST_FRAME:
        raise BadMessage(f"a message of {len(payload)} bytes does not fit into a frame ({LARGEST_FRAME} bytes at most)")
    return len(payload).to_bytes(LENGTH_BYTES, "little") + payload


def frame_length(header: bytes, limit: int) -> int:
    """Read the length from a frame's header.

    Raises:
        BadMessage: the frame is longer than `limit` bytes; nothing of it should be read.
    """
    length = int.from_bytes(header, "little")
    if length > limit:
        raise BadMessage(f"a frame of {length} bytes was announced; at most {limit} are accepted here")
    return length


class FrameReader:
    """Cuts a stream of bytes, fed as they come, into the payloads of its frames."""

    def __init__(self, limit: int = FRAME_LIMIT) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take more bytes and return the payloads that are now complete.

        Raises:
            BadMessage: a frame longer than the limit begins. The stream cannot be used any more.
        """
        self._buffer += data
        payloads = []
        start = 0
        while len(self._buffer) - start >= LENGTH_BYTES:
            body = start + LENGTH_BYTES
            length = frame_length(bytes(self._buffer[start:body]), self._limit)
            if len(self._buffer) - body < length:
                break
            payloads.append(bytes(self._buffer[body : body + length]))
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
        self._decoder = msgspec.msgpack.Decoder(messages)
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: msgspec.Struct) -> bytes:
        """Return the message as MessagePack."""
        return self._encoder.encode(message)

    def decode(self, payload: bytes) -> Message:
        """Return the message in a payload.

        Raises:
            BadMessage: it is none of this codec's messages.
        """
        try:
            message: Message = self._decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise BadMessage(f"a frame of {len(payload)} bytes is not a message that belongs here: {error}") from None
        return message


# --- proof ---------------------------------------------------------------------------------------------------


def _is_proof(proof: bytes, secret: bytes, side: bytes, client_nonce: bytes, server_nonce: bytes) -> bool:
    import hmac

    # In a time that does not tell how much of it was right.
    return hmac.compare_digest(proof, _proof(secret, side, client_nonce, server_nonce))


def _proof(secret: bytes, side: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    import hmac  # With it comes OpenSSL, which agents can do without: they speak over pipes.

    return hmac.digest(secret, PROTOCOL + side + client_nonce + server_nonce, "sha256")


class ClientHandshake:
    """The side that opened the connection."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = os.urandom(NONCE_BYTES)

    def hello(self) -> bytes:
        """Return the first payload to send."""
        return PROTOCOL + self._nonce

    def answer(self, challenge: bytes) -> bytes:
        """Check the server's challenge and return the last payload to send.

        Raises:
            AuthenticationFailed: the server does not hold the secret.
        """
        nonce, proof = challenge[:NONCE_BYTES], challenge[NONCE_BYTES:]
        if not _is_proof(proof, self._secret, b"server", self._nonce, nonce):
            raise AuthenticationFailed(
                "the roster could not prove that it belongs to this job: FARANDOLE_SECRET and FARANDOLE_ROSTER are "
                "not from the same launcher. Start the worker with `farandole run` and leave both as they are; if you "
                "set them by hand, set the same on all workers."
            )
        return _proof(self._secret, b"client", self._nonce, nonce)


class ServerHandshake:
    """The side that accepted the connection."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = os.urandom(NONCE_BYTES)
        self._client_nonce = b""

    def challenge(self, hello: bytes) -> bytes:
        """Take the client's hello and return the challenge to send.

        Raises:
            AuthenticationFailed: the client speaks something else.
        """
        if not hello.startswith(PROTOCOL) or len(hello) != len(PROTOCOL) + NONCE_BYTES:
            raise AuthenticationFailed("a client that does not speak this protocol or this version of it")
        self._client_nonce = hello[len(PROTOCOL) :]
        return self._nonce + _proof(self._secret, b"server", self._client_nonce, self._nonce)

    def check(self, proof: bytes) -> None:
        """Check the client's proof.

        Raises:
            AuthenticationFailed: the client does not hold the secret.
        """
        if not _is_proof(proof, self._secret, b"client", self._client_nonce, self._nonce):
            raise AuthenticationFailed("a client that does not hold this job's secret")


# --- addresses -------------------------------------------------------------------------------------------------


def parse_address(text: str) -> tuple[str, int]:
    """Split `host:port`; an IPv6 host stands in brackets.

    Raises:
        ValueError: the text is not an address.

    Example:
        >>> parse_address("[::1]:4711")
        ('::1', 4711)
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    numbered = port.isascii() and port.isdigit() and int(port) < 1 << 16
    if not colon or not host or not numbered or (":" in host and not bracketed):
        raise ValueError(f"{text!r} is not an address: expected host:port, with an IPv6 host in brackets")
    return host[1:-1] if bracketed else host, int(port)


def format_address(host: str, port: int) -> str:
    """Write `host:port` so that `parse_address` can read it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
