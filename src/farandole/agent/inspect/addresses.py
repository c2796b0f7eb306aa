"""Addresses of this host's interfaces, as `getifaddrs` lists them."""

from __future__ import annotations

import ctypes
import os
import socket

_IPV4_OFFSET, _IPV4_BYTES = 4, 4
_IPV6_OFFSET, _IPV6_BYTES = 8, 16


class _Entry(ctypes.Structure):
    """`struct ifaddrs`, of which nothing behind the netmask is of interest."""


_Entry._fields_ = (
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
)


def addresses() -> list[tuple[str, str, int]]:
    """Return interface, address and prefix length of every IPv4 and IPv6 address.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Entry)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    try:
        found = []
        entry = first
        while entry:
            told = _address(entry.contents)
            if told is not None:
                found.append((entry.contents.name.decode(errors="replace"), *told))
            entry = entry.contents.next
        return found
    finally:
        libc.freeifaddrs(first)


def _address(entry: _Entry) -> tuple[str, int] | None:
    if not entry.address or not entry.netmask:
        return None
    family = ctypes.c_ushort.from_address(entry.address).value
    if family == socket.AF_INET:
        offset, count = _IPV4_OFFSET, _IPV4_BYTES
    elif family == socket.AF_INET6:
        offset, count = _IPV6_OFFSET, _IPV6_BYTES
    else:
        return None
    mask = ctypes.string_at(entry.netmask + offset, count)
    prefix = sum(byte.bit_count() for byte in mask)
    return socket.inet_ntop(family, ctypes.string_at(entry.address + offset, count)), prefix
