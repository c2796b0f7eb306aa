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

The pure part (`FrameReader`, `frame`, the handshakes, `Codec`) does no I/O; `Channel` drives it over a blocking
socket, `AsyncChannel` over asyncio streams.

Errors:

    WireError (ConnectionError)
    ├── ConnectionLost         the other side closed, or the network broke
    ├── AuthenticationFailed   the other side does not hold this job's secret
    ├── BadMessage             a frame is too long, or is not a message that belongs here
    └── WireTimeout            nothing came in time; also a TimeoutError
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    import asyncio

PROTOCOL = b"farandole roster 1\n"
NONCE_BYTES = 32
PROOF_BYTES = 32  # of SHA-256
LENGTH_BYTES = 4
HANDSHAKE_LIMIT = 128
FRAME_LIMIT = 64 * 1024 * 1024
LARGEST_FRAME = 2 ** (8 * LENGTH_BYTES) - 1
HANDSHAKE_SECONDS = 10.0
_FORGOTTEN_AT_ONCE = 1 << 16

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


# --- blocking side -----------------------------------------------------------------------------------------------


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


# --- asyncio side ------------------------------------------------------------------------------------------------


class AsyncChannel:
    """Frames over asyncio streams: a socket that has yet to prove itself, or a pipe that needs no proof."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int = FRAME_LIMIT) -> None:
        self._reader = reader
        self._writer = writer
        self._limit = limit

    async def accept(self, secret: bytes, timeout: float = HANDSHAKE_SECONDS) -> None:
        """Prove both sides to each other, as the server. Close the channel when this raises.

        Raises:
            AuthenticationFailed: the client does not hold the secret or speaks something else.
            WireTimeout: the client did not finish within `timeout` seconds.
        """
        import asyncio

        limit, self._limit = self._limit, HANDSHAKE_LIMIT
        try:
            await asyncio.wait_for(self._accept(ServerHandshake(secret)), timeout)
        except (TimeoutError, asyncio.TimeoutError):
            raise WireTimeout(f"a client that did not prove itself within {timeout:g} s") from None
        self._limit = limit

    async def _accept(self, handshake: ServerHandshake) -> None:
        await self.send(handshake.challenge(await self.receive()))
        handshake.check(await self.receive())

    async def send(self, payload: bytes) -> None:
        """Send one frame, and wait while too much is on its way."""
        try:
            self._writer.write(frame(payload))
            await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error.strerror or error}") from None

    def post(self, payload: bytes) -> None:
        """Send one frame without waiting, for small ones to a side that always reads."""
        self._writer.write(frame(payload))

    def backlog(self) -> int:
        """Return how many bytes wait here because the other side does not read them."""
        return self._writer.transport.get_write_buffer_size()

    async def skip_to(self, mark: bytes) -> None:
        """Pass over what comes before a mark, and the mark.

        Raises:
            BadMessage: it does not come soon.
            ConnectionLost: the other side closed before.
        """
        import asyncio

        try:
            await self._reader.readuntil(mark)
        except asyncio.IncompleteReadError:
            raise ConnectionLost("the other side closed the connection") from None
        except asyncio.LimitOverrunError:
            raise BadMessage("the other side speaks something else") from None

    async def receive(self) -> bytes:
        """Wait for one frame and return its payload."""
        import asyncio

        try:
            length = frame_length(await self._reader.readexactly(LENGTH_BYTES), self._limit)
            return await self._reader.readexactly(length)
        except asyncio.IncompleteReadError:
            raise ConnectionLost("the other side closed the connection") from None
        except WireError:
            raise
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error.strerror or error}") from None

    async def forget_the_rest(self) -> None:
        """Read until the other side closes, and keep nothing: asyncio does not notice the end of what is not read."""
        try:
            while await self._reader.read(_FORGOTTEN_AT_ONCE):
                pass
        except OSError:
            return

    def close(self) -> None:
        """Close without waiting."""
        self._writer.close()

    async def closed(self) -> None:
        """Close, and wait until that is done; an error of the way, which asyncio would complain of, is let pass."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return
