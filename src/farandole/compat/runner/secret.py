"""`horovod.runner.common.util.secret`."""

from __future__ import annotations

import hashlib
import hmac
import secrets

HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
DIGEST_LENGTH_BYTES = 32


def make_secret_key() -> bytes:
    """Return a new random key."""
    return secrets.token_bytes(DIGEST_LENGTH_BYTES)


def compute_digest(key: bytes, bytes_: bytes) -> bytes:
    """Return the HMAC-SHA256 of a message."""
    return hmac.new(key, bytes_, hashlib.sha256).digest()


def check_digest(key: bytes, bytes_: bytes, digest: bytes) -> bool:
    """Return whether a message has that digest."""
    return hmac.compare_digest(compute_digest(key, bytes_), digest)
