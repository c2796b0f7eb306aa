"""The content of new Secrets."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable

from farandole.control.kubernetes.mpijob.access import SSH_KEYS
from farandole.control.kubernetes.mpijob.pods import PRIVATE_KEY, PUBLIC_KEY

JOB_SECRET = "job-secret"


def ssh_keys() -> dict[str, bytes]:
    """Return a new pair of SSH keys. The private key is in PEM format, which every version of ssh reads."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = ec.generate_private_key(ec.SECP521R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return {PRIVATE_KEY: private, PUBLIC_KEY: public + b"\n"}


def job_secret() -> dict[str, bytes]:
    """Return a new secret for a TrainingJob: 256 bits, in hexadecimal."""
    return {"secret": secrets.token_hex(32).encode()}


GENERATORS: dict[str, Callable[[], dict[str, bytes]]] = {SSH_KEYS: ssh_keys, JOB_SECRET: job_secret}


def data(generator: str) -> dict[str, str]:
    """Return the data of a new Secret, in the form of the API."""
    return {name: base64.b64encode(value).decode() for name, value in GENERATORS[generator]().items()}
