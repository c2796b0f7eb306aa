"""The port of a reception."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence

from farandole.errors import SpecError

# Hosts may all dial before the job runs.
_BACKLOG = 4096


class ReceptionPort:
    """Listens on all addresses, on the first free one of several ports; port 0 is any free port."""

    def __init__(self, ports: Iterable[int]) -> None:
        self._ports = tuple(ports)
        self._listener: socket.socket | None = None

    def listen(self) -> socket.socket:
        """Return the socket that listens.

        Raises:
            SpecError: all ports are in use.
        """
        self._listener = self._listener or _first_free(self._ports)
        return self._listener

    def close(self) -> None:
        """Stop listening; no-op if it is not listening."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def _first_free(ports: Sequence[int]) -> socket.socket:
    """Return a socket that listens on the first free one of these ports.

    Raises:
        SpecError: all ports are in use.
    """
    reason = ""
    for port in ports:
        try:
            if socket.has_dualstack_ipv6():
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
            return socket.create_server(("", port), backlog=_BACKLOG)
        except OSError as error:
            reason = error.strerror or str(error)
    which = f"port {ports[0]}" if len(ports) == 1 else f"a port from {ports[0]} to {ports[-1]}"
    raise SpecError(f"hosts cannot dial {which}: {reason}", "use another port")
