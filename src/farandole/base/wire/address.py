"""Parsing and formatting of `host:port` addresses."""

from __future__ import annotations


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and port of `host:port`; an IPv6 host is in brackets.

    Raises:
        ValueError: the text is not an address.

    Example:
        >>> parse_address("[::1]:4711")
        ('::1', 4711)
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    numbered = port.isascii() and port.isdigit() and int(port) < 1 << 16
    if not colon or not host or not numbered or (":" in host and not bracketed):
        raise ValueError(f"{text!r} is not an address: expected host:port, with an IPv6 host in brackets")
    return host[1:-1] if bracketed else host, int(port)


def format_address(host: str, port: int) -> str:
    """Return `host:port` in the form that `parse_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
