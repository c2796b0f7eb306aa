"""`horovod.runner.common.util.host_hash`: a word that processes have in common if they share a machine."""

from __future__ import annotations

import hashlib
import os
import socket


def _hash(string: str) -> str:
    return hashlib.md5(string.encode(), usedforsecurity=False).hexdigest()


def _namespaces() -> str:
    """Name the kernel's namespaces of this process: containers on one machine differ in them."""
    folder = "/proc/self/ns"
    if not os.path.isdir(folder):
        return ""
    return " ".join(os.readlink(os.path.join(folder, name)) for name in sorted(os.listdir(folder)))


def host_hash(salt: str | None = None) -> str:
    """Return the host's name and a digest of it, of the container, and of `salt`."""
    name = socket.gethostname()
    text = f"{name}-{_namespaces()}" + (f"-{salt}" if salt else "")
    return f"{name.partition('.')[0]}-{_hash(text)}"
