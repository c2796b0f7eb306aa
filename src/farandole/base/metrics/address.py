"""The address of a metrics endpoint: `[HOST:]PORT`, on loopback unless a host is given."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

DEFAULT_PORT = 9478
LOOPBACK = "127.0.0.1"


class MetricsAddress(NamedTuple):
    """Host and port to listen on; port 0: any free port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def with_port(self, port: int) -> MetricsAddress:
        """Return the same host with another port."""
        return self._replace(port=port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_metrics_address(text: str) -> MetricsAddress:
    """Parse `PORT` or `HOST:PORT`.

    Raises:
        ValueError: the text is neither; the message describes valid texts.

    Example:
        >>> parse_metrics_address("9478")
        MetricsAddress(host='127.0.0.1', port=9478)
        >>> str(parse_metrics_address("[::1]:0"))
        '[::1]:0'
    """
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError("PORT or HOST:PORT")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("an IPv6 address in brackets: [::1]:9478")
    host = host.strip("[]")
    if not host and text.startswith(":"):
        raise ValueError("a host before the colon; 0.0.0.0 for all addresses of this machine")
    return MetricsAddress(host or LOOPBACK, int(port))
