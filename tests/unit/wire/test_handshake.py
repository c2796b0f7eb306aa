"""Proof: no socket is opened here."""

from __future__ import annotations

import pytest

from farandole.base.wire import handshake
from farandole.base.wire.errors import AuthenticationFailed
from farandole.base.wire.handshake import ClientHandshake, ServerHandshake

SECRET = bytes(range(32))


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


def test_replayed_proof_is_refused() -> None:
    client, first = ClientHandshake(SECRET), ServerHandshake(SECRET)
    hello = client.hello()
    proof = client.answer(first.challenge(hello))
    first.check(proof)
    second = ServerHandshake(SECRET)
    second.challenge(hello)
    with pytest.raises(AuthenticationFailed):
        second.check(proof)


def test_reflected_proof_is_refused() -> None:
    server = ServerHandshake(SECRET)
    challenge = server.challenge(ClientHandshake(SECRET).hello())
    with pytest.raises(AuthenticationFailed):
        server.check(challenge[handshake.NONCE_BYTES :])


@pytest.mark.parametrize("hello", [b"", b"GET / HTTP/1.1\r\n", handshake.PROTOCOL, handshake.PROTOCOL + bytes(31)])
def test_server_refuses_what_is_not_a_hello(hello: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match="does not speak this protocol"):
        ServerHandshake(SECRET).challenge(hello)


def test_handshake_fits_into_its_frame_limit() -> None:
    client, server = ClientHandshake(SECRET), ServerHandshake(SECRET)
    challenge = server.challenge(client.hello())
    assert max(map(len, (client.hello(), challenge, client.answer(challenge)))) <= handshake.HANDSHAKE_LIMIT
