"""Frames, messages, proofs and addresses: no socket is opened here."""

from __future__ import annotations

import msgspec
import pytest

from farandole.core import wire
from farandole.core.wire import (
    AuthenticationFailed,
    BadMessage,
    ClientHandshake,
    Codec,
    FrameReader,
    ServerHandshake,
    format_address,
    frame,
    parse_address,
)

SECRET = bytes(range(32))


class Ping(msgspec.Struct, tag="ping"):
    number: int


class Pong(msgspec.Struct, tag="pong"):
    text: str


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000])
def test_frames_survive_any_cutting(step: int) -> None:
    payloads = [b"", b"a", b"bc" * 100, b"\x00" * 7]
    stream = b"".join(frame(payload) for payload in payloads)
    reader = FrameReader()
    received = []
    for start in range(0, len(stream), step):
        received += reader.feed(stream[start : start + step])
    assert received == payloads


def test_a_frame_over_the_limit_is_refused_before_its_body_comes() -> None:
    reader = FrameReader(limit=10)
    assert reader.feed(frame(b"x" * 10)) == [b"x" * 10]
    with pytest.raises(BadMessage, match="11 bytes was announced; at most 10"):
        reader.feed((11).to_bytes(4, "little"))


def test_codec_takes_only_its_own_messages() -> None:
    codec: Codec[Ping | Pong] = Codec(Ping | Pong)
    assert codec.decode(codec.encode(Pong("hi"))) == Pong("hi")
    other: Codec[Ping] = Codec(Ping)
    for payload in (codec.encode(Pong("hi")), b"", b"\xc1rubbish", msgspec.msgpack.encode({"type": "ping"})):
        with pytest.raises(BadMessage):
            other.decode(payload)


def shake_hands(client: ClientHandshake, server: ServerHandshake) -> None:
    server.check(client.answer(server.challenge(client.hello())))


def test_handshake_between_holders_of_one_secret() -> None:
    shake_hands(ClientHandshake(SECRET), ServerHandshake(SECRET))


def test_client_notices_a_server_with_another_secret() -> None:
    with pytest.raises(AuthenticationFailed, match="FARANDOLE_SECRET"):
        shake_hands(ClientHandshake(SECRET), ServerHandshake(b"another"))


def test_server_notices_a_client_with_another_secret() -> None:
    server, honest = ServerHandshake(SECRET), ClientHandshake(SECRET)
    proof = honest.answer(server.challenge(honest.hello()))
    for wrong in (b"", proof[:-1], proof + b"\0", bytes(32), proof[::-1]):
        with pytest.raises(AuthenticationFailed):
            server.check(wrong)


def test_a_recorded_proof_is_worth_nothing_to_another_connection() -> None:
    client, first = ClientHandshake(SECRET), ServerHandshake(SECRET)
    hello = client.hello()
    proof = client.answer(first.challenge(hello))
    first.check(proof)
    second = ServerHandshake(SECRET)
    second.challenge(hello)
    with pytest.raises(AuthenticationFailed):
        second.check(proof)


def test_a_servers_own_proof_cannot_be_reflected_to_it() -> None:
    server = ServerHandshake(SECRET)
    challenge = server.challenge(ClientHandshake(SECRET).hello())
    with pytest.raises(AuthenticationFailed):
        server.check(challenge[wire.NONCE_BYTES :])


@pytest.mark.parametrize("hello", [b"", b"GET / HTTP/1.1\r\n", wire.PROTOCOL, wire.PROTOCOL + bytes(31)])
def test_server_refuses_what_is_not_a_hello(hello: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match="does not speak this protocol"):
        ServerHandshake(SECRET).challenge(hello)


def test_handshake_fits_into_its_frame_limit() -> None:
    client, server = ClientHandshake(SECRET), ServerHandshake(SECRET)
    challenge = server.challenge(client.hello())
    assert max(map(len, (client.hello(), challenge, client.answer(challenge)))) <= wire.HANDSHAKE_LIMIT


@pytest.mark.parametrize("address", [("127.0.0.1", 1), ("::1", 4711), ("node-3.cluster", 65535)])
def test_addresses_can_be_read_back(address: tuple[str, int]) -> None:
    assert parse_address(format_address(*address)) == address


@pytest.mark.parametrize("text", ["", "host", "host:", ":12", "host:port", "::1:12", "host:-1"])
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_address(text)
