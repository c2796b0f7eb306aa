"""Free ports, for the peers' servers that need to be given one."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that is free now. If another process takes it before it is used, the job fails."""
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::", 0))
        return int(probe.getsockname()[1])
