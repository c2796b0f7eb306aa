"""`horovod.runner.util.network`: addresses of hosts, and whether they are this machine's."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Iterable

_SIOCGIFCONF = 0x8912
_REQUEST_BYTES = 40  # struct ifreq: a name of 16 bytes, then a socket address.


def resolve_host_address(host_name: str) -> str | None:
    """Return a host's IPv4 address, or None if its name cannot be resolved."""
    try:
        return socket.gethostbyname(host_name)
    except OSError:
        return None


def get_local_host_addresses() -> list[str]:
    """Return the IPv4 addresses of all interfaces of this machine."""
    requests = array.array("B", bytes(_REQUEST_BYTES * 1024))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        question = struct.pack("iL", len(requests), requests.buffer_info()[0])
        used = struct.unpack("iL", fcntl.ioctl(probe, _SIOCGIFCONF, question))[0]
    found = requests.tobytes()
    return [socket.inet_ntoa(found[start + 20 : start + 24]) for start in range(0, used, _REQUEST_BYTES)]


def get_local_interfaces(address: str) -> list[str]:
    """Return the names of the interfaces with this IPv4 address."""
    return sorted(name for _, name in socket.if_nameindex() if _address_of(name) == address)


def _address_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            return socket.inet_ntoa(fcntl.ioctl(probe, 0x8915, request)[20:24])
        except OSError:
            return None  # It has none.


def is_local(host_name: str) -> bool:
    """Return whether a name or an address is this machine's."""
    if host_name in ("localhost", socket.gethostname()):
        return True
    address = resolve_host_address(host_name)
    return address is not None and (address.startswith("127.") or address in get_local_host_addresses())


def filter_local_addresses(all_host_names: Iterable[str]) -> list[str]:
    """Return the hosts that are other machines."""
    return [name for name in all_host_names if not is_local(name)]
