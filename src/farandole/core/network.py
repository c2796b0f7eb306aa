"""The addresses of this machine, as the kernel tells them (getifaddrs), the fastest network first."""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8
_IFF_RUNNING = 0x40


@dataclass(frozen=True)
class Address:
    """One address of one network interface."""

    interface: str
    address: str
    """IPv4 or IPv6; a link-local one with its scope, such as fe80::1%eth0."""
    prefix: int
    """Bits that are the same for all of its network."""
    speed: int
    """Megabits per second, as the kernel says; 0 when it does not."""


class _SocketAddress(ctypes.Structure):
    _fields_ = (("family", ctypes.c_uint16), ("data", ctypes.c_ubyte * 26))


class _Entry(ctypes.Structure):
    pass


_Entry._fields_ = (
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_SocketAddress)),
    ("netmask", ctypes.POINTER(_SocketAddress)),
    ("destination", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
)


def addresses(networks: Sequence[str] = ()) -> list[Address]:
    """Return the addresses at which other machines may reach this one: those of interfaces that are up.

    Loopback is left out, and link-local addresses where an interface has others of the same family.

    Args:
        networks: take only what one of these picks, in their order; see `pick`. Empty: all, the fastest first.

    Raises:
        ValueError: a network picks nothing here; the text lists what there is.
        OSError: the kernel does not tell.
    """
    found = sorted(_without_needless_link_local(list(_list())), key=lambda each: (-each.speed, each.interface))
    return pick(found, networks) if networks else found


def every_address() -> list[Address]:
    """Return all addresses of this machine, those of loopback and of interfaces that are down too.

    Raises:
        OSError: the kernel does not tell.
    """
    return list(_list(every=True))


def pick(found: Sequence[Address], networks: Sequence[str]) -> list[Address]:
    """Return the addresses that networks name, in the order of the networks.

    Args:
        found: to choose from.
        networks: each an interface's name, an address, or a network such as 10.1.0.0/16.

    Raises:
        ValueError: a network picks nothing; the text lists what there is.

    Example:
        >>> lan = Address("eth0", "10.1.2.3", 24, 1000)
        >>> pick([lan, Address("wlan0", "192.168.0.7", 24, 0)], ["10.1.0.0/16"]) == [lan]
        True
    """
    picked: dict[Address, None] = {}
    for network in networks:
        matching = [each for each in found if _matches(each, network)]
        if not matching:
            there = ", ".join(f"{each.interface} {each.address}/{each.prefix}" for each in found) or "none"
            raise ValueError(f"no network interface or address matches {network!r}; there are: {there}")
        picked.update(dict.fromkeys(matching))
    return list(picked)


def _matches(each: Address, network: str) -> bool:
    if each.interface == network:
        return True
    own = ipaddress.ip_address(each.address.partition("%")[0])
    try:
        return own in ipaddress.ip_network(network.partition("%")[0], strict=False)
    except ValueError:
        return False  # It is a name of an interface.


def _without_needless_link_local(found: Sequence[Address]) -> list[Address]:
    def link_local(each: Address) -> bool:
        return ipaddress.ip_address(each.address.partition("%")[0]).is_link_local

    routed = {(each.interface, ":" in each.address) for each in found if not link_local(each)}
    return [each for each in found if not link_local(each) or (each.interface, ":" in each.address) not in routed]


def _list(every: bool = False) -> Iterator[Address]:
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Entry)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not tell the addresses of this machine")
    try:
        entry = first
        while entry:
            one = entry.contents
            usable = one.flags & _IFF_UP and one.flags & _IFF_RUNNING and not one.flags & _IFF_LOOPBACK
            if (usable or every) and one.address and one.address.contents.family in (socket.AF_INET, socket.AF_INET6):
                yield _read(one)
            entry = one.next
    finally:
        libc.freeifaddrs(first)


def _read(one: _Entry) -> Address:
    interface = one.name.decode()
    raw = bytes(one.address.contents.data)
    mask = bytes(one.netmask.contents.data) if one.netmask else b""
    if one.address.contents.family == socket.AF_INET:
        # Two bytes of port come first.
        text, prefix = socket.inet_ntop(socket.AF_INET, raw[2:6]), _bits(mask[2:6])
    else:
        # Port and flow label come first; the scope comes last.
        text, prefix = socket.inet_ntop(socket.AF_INET6, raw[6:22]), _bits(mask[6:22])
        if int.from_bytes(raw[22:26], sys.byteorder):
            text += f"%{interface}"
    return Address(interface, text, prefix, _speed(interface))


def _bits(mask: bytes) -> int:
    return bin(int.from_bytes(mask, "big")).count("1")


def _speed(interface: str) -> int:
    try:
        with open(f"/sys/class/net/{interface}/speed") as file:
            return max(0, int(file.read()))
    except (OSError, ValueError):
        return 0  # Wireless and virtual ones have none.
