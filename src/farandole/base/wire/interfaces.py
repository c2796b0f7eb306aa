"""The addresses at which other machines may reach this one, from the C library alone.

All interfaces that are up and running are offered, so users need not know their names: a client tries all addresses.
Excluded are loopback, interfaces without a link (such as a container bridge without containers), and link-local
addresses if there are others, because the zone behind their `%` is this machine's name for the interface.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from farandole.errors import SettingError

_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40  # <net/if.h>
_IPV4_OFFSET, _IPV6_OFFSET, _SCOPE_OFFSET = 4, 8, 24  # in sockaddr_in and sockaddr_in6

_INTERFACES = Path("/sys/class/net")


class Address(NamedTuple):
    """One address of this machine."""

    interface: str
    address: str
    """Numeric address; a link-local one ends with `%` and the interface."""
    prefix: int
    """Length of the network prefix in bits."""
    speed: int
    """Megabits per second, as reported by the kernel; 0: unknown."""

    def __str__(self) -> str:
        """Return the interface and the address with its prefix, as `ip address` writes it."""
        return f"{self.interface} {self.address}/{self.prefix}"


def addresses(networks: Sequence[str] = ()) -> list[Address]:
    """Return this machine's addresses, those on the fastest interface first, bridges last.

    Args:
        networks: names of interfaces, addresses or networks to choose from (see `pick`); empty: all.

    Raises:
        SettingError: no address is in these networks.

    Example:
        >>> [str(each) for each in addresses(["10.0.0.0/8"])]  # doctest: +SKIP
        ['eth1 10.0.0.7/24']
    """
    everything = sorted(_running(), key=lambda each: (_is_bridge(each.interface), -each.speed))
    chosen = pick(everything, networks) if networks else everything
    if networks and not chosen:
        raise SettingError(
            f"no address of this machine ({socket.gethostname()}) is in the network {','.join(networks)}. Name an "
            f"interface, an address or a network such as 10.1.0.0/16. The addresses here: {list_addresses(everything)}."
        )
    return [each for each in chosen if not _is_link_local(each)] or chosen


def every_address() -> list[Address]:
    """Return all addresses of this machine, including loopback and interfaces that are down."""
    return list(_all(lambda flags: True))


def pick(found: Sequence[Address], networks: Sequence[str]) -> list[Address]:
    """Return the addresses that are in given networks, in the order of the networks.

    Args:
        found: the addresses to choose from.
        networks: names of interfaces, addresses, or networks such as 10.1.0.0/16.

    Example:
        >>> lan = Address("eth0", "10.1.2.3", 24, 1000)
        >>> pick([lan, Address("wlan0", "192.168.0.7", 24, 0)], ["10.1.0.0/16"]) == [lan]
        True
    """
    return list(dict.fromkeys(each for network in networks for each in found if _is_in(each, network)))


def list_addresses(found: Sequence[Address]) -> str:
    """Return addresses as text for people."""
    return ", ".join(map(str, found)) or "none but loopback"


def _is_in(each: Address, network: str) -> bool:
    if each.interface == network:
        return True
    try:
        return ipaddress.ip_address(each.address.partition("%")[0]) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False  # It is the name of another interface.


def _is_link_local(each: Address) -> bool:
    return ipaddress.ip_address(each.address.partition("%")[0]).is_link_local


def _is_bridge(interface: str) -> bool:
    return (_INTERFACES / interface / "bridge").exists()


def _speed(interface: str) -> int:
    try:
        return max(0, int((_INTERFACES / interface / "speed").read_text()))
    except (OSError, ValueError):
        return 0  # Virtual interfaces have none.


def _can_be_listened_on(address: str) -> bool:
    """Return whether an address can be bound: a new IPv6 address cannot until duplicate address detection is done."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.bind(where)
        return True
    except OSError:
        return False


# --- getifaddrs(3) -----------------------------------------------------------------------------------------------


class _Entry(ctypes.Structure):
    """struct ifaddrs."""


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("destination", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def _running() -> Iterator[Address]:
    found = _all(lambda flags: bool(flags & _UP and flags & _RUNNING and not flags & _LOOPBACK))
    return (each for each in found if _can_be_listened_on(each.address))


def _all(wanted: Callable[[int], bool]) -> Iterator[Address]:
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Entry)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), "getifaddrs failed")
    try:
        entry = first
        while entry:
            found = _read(entry.contents) if wanted(entry.contents.flags) else None
            if found is not None:
                yield found
            entry = entry.contents.next
    finally:
        libc.freeifaddrs(first)


def _read(entry: _Entry) -> Address | None:
    if not entry.address or not entry.netmask:
        return None
    family = ctypes.c_ushort.from_address(entry.address).value
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    interface = entry.name.decode()
    address = _numbers(family, entry.address)
    if family == socket.AF_INET6 and ctypes.c_uint32.from_address(entry.address + _SCOPE_OFFSET).value:
        address += f"%{interface}"
    mask = _bytes(family, entry.netmask)
    return Address(interface, address, int.from_bytes(mask, "big").bit_count(), _speed(interface))


def _bytes(family: int, sockaddr: int) -> bytes:
    if family == socket.AF_INET:
        return ctypes.string_at(sockaddr + _IPV4_OFFSET, 4)
    return ctypes.string_at(sockaddr + _IPV6_OFFSET, 16)


def _numbers(family: int, sockaddr: int) -> str:
    return socket.inet_ntop(family, _bytes(family, sockaddr))
