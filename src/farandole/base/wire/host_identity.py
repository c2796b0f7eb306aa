"""The identity of the host that a process is on."""

from __future__ import annotations

import socket

from farandole.base.wire import clock


def here() -> tuple[str, str]:
    """Return the host's identifier, which is the same for all processes on it, and its name for messages."""
    hostname = socket.gethostname()
    # Machines may share a name, and containers a kernel; what shares both is a host.
    return f"{hostname} {clock.identity()}", hostname
