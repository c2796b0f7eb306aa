"""The handshake: both sides of a connection prove that they hold the job's secret before any message is decoded.

Until then frames have a fixed layout and at most `HANDSHAKE_LIMIT` bytes, and are never decoded.

    client                                         server
    hello      PROTOCOL, client nonce        ->
               <-  challenge  server nonce, HMAC(secret, "server", both nonces)
    proof      HMAC(secret, "client", both nonces) ->

The server proves itself first, so a client never sends anything but a nonce to an impostor. Both nonces are fresh and
the hashed data names the side, so neither a replay nor a reflection of the other side's proof is accepted. Frames after
the handshake are neither encrypted nor signed.

Nothing here does I/O.
"""

from __future__ import annotations

import os

from farandole.base.wire.errors import AuthenticationFailed

PROTOCOL = b"farandole roster 1\n"
NONCE_BYTES = 32
PROOF_BYTES = 32  # of SHA-256
HANDSHAKE_LIMIT = 128
HANDSHAKE_SECONDS = 10.0


def _is_proof(proof: bytes, secret: bytes, side: bytes, client_nonce: bytes, server_nonce: bytes) -> bool:
    import hmac

    # In constant time, so that the time does not reveal how much of the proof was right.
    return hmac.compare_digest(proof, _proof(secret, side, client_nonce, server_nonce))


def _proof(secret: bytes, side: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    import hmac  # It loads OpenSSL, which agents do not need: they communicate over pipes.

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
                "not from the same launcher. Start the worker with `farandole run` and do not change them; if you "
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
        """Check the client's hello and return the challenge to send.

        Raises:
            AuthenticationFailed: the client does not use this protocol.
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
