"""The wires: a network namespace with a bridge for each network, and a port on it for each host.

The namespace belongs to a process that ends when its standard input is closed, so that it does not outlive the bed's
owner.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from tests.hosts.errors import BedError
from tests.hosts.namespaces import NSENTER, in_network

_RATE = re.compile(r"(\d+(?:\.\d+)?)(k|m|g)bit")
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}
# The burst: enough for the largest segment that the kernel hands down, and for the bytes of one timer tick.
_BURST_SECONDS = 0.001
_LEAST_BURST_BYTES = 256 * 1024
_LATENCY = "20ms"
# A bridge without its own address uses the lowest of its ports, which changes when a port is added or removed.
# Hosts that speak to the bridge itself would send to the old one, in vain, for some ten seconds.
_HARDWARE_ADDRESS = "02:00:00:00:ff:01"
# The kernel's limit, less what stands before a network's name in the name of a port.
LONGEST_NETWORK_NAME = 10


@dataclass(frozen=True)
class Plug:
    """A host's end of a wire.

    Attributes:
        host: the host's number.
        network: the wire's network, and the name of the device on the host.
        process: a process of the host.
        hardware_address: the device's hardware address.
    """

    host: int
    network: str
    process: int
    hardware_address: str

    @property
    def port(self) -> str:
        """The name of the other end, a device of the switch."""
        return f"p{self.host}-{self.network}"


class Switch:
    """The wires of one bed."""

    def __init__(self, networks: Sequence[str]) -> None:
        """Create a bridge for each network.

        Raises:
            BedError: the machine does not allow it.
        """
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if self._holder.stdout.readline() != b"ready\n":
            self.close()
            raise BedError("a network namespace cannot be made; run as root, outside of containers that forbid it")
        lines = []
        for network in networks:
            # Without spanning tree and snooping a port forwards at once, and IPv6 finds its neighbours.
            lines.append(
                f"link add name {network} address {_HARDWARE_ADDRESS} type bridge stp_state 0 mcast_snooping 0"
            )
            lines.append(f"link set dev {network} up")
        self._ip(lines)

    @property
    def pid(self) -> int:
        """The id of a process in the namespace of the bridges."""
        return self._holder.pid

    def connect(self, plugs: Sequence[Plug]) -> None:
        """Create the wires: the end in the host has the name of the network, and is initially down."""
        lines = []
        for plug in plugs:
            far_end = f"name {plug.network} address {plug.hardware_address} netns {plug.process}"
            lines.append(f"link add name {plug.port} type veth peer {far_end}")
            lines.append(f"link set dev {plug.port} master {plug.network} up")
        self._ip(lines)

    def cut(self, plugs: Sequence[Plug]) -> None:
        """Block all packets to and from these plugs. Their links stay up: only silence shows the fault."""
        self._ip([f"link set dev {plug.port} nomaster" for plug in plugs])

    def restore(self, plugs: Sequence[Plug]) -> None:
        """Undo `cut`."""
        self._ip([f"link set dev {plug.port} master {plug.network}" for plug in plugs])

    def detach(self, prefix: str) -> None:
        """Block all packets to and from all ports whose names have a prefix."""
        self._ip([f"link set dev {port} nomaster" for port in self.ports(prefix)])

    def attach(self, prefix: str, network: str) -> None:
        """Undo `detach`."""
        self._ip([f"link set dev {port} master {network}" for port in self.ports(prefix)])

    def ports(self, prefix: str) -> list[str]:
        """Return the ports whose names have a prefix."""
        enter = [NSENTER, f"--net=/proc/{self.pid}/ns/net", "--", "ip", "-json", "link"]
        shown = subprocess.run(enter, capture_output=True, check=True, timeout=30).stdout
        return [each["ifname"] for each in json.loads(shown) if each["ifname"].startswith(prefix)]

    def shape(self, plugs: Sequence[Plug], bandwidth: str | None) -> None:
        """Limit the bandwidth of each of these plugs in both directions, for example to `1gbit`; None removes the
        limit.

        Open connections are affected at once.
        """
        limit = "noqueue" if bandwidth is None else _token_bucket(bandwidth)
        ports = [f"qdisc replace dev {plug.port} root {limit}" for plug in plugs]
        in_network(self._holder.pid, ["tc", "-batch", "-"], ports)
        for plug in plugs:
            in_network(plug.process, ["tc", "-batch", "-"], [f"qdisc replace dev {plug.network} root {limit}"])

    def close(self) -> None:
        """Remove the wires."""
        self._holder.kill()
        self._holder.communicate()

    def _ip(self, lines: Sequence[str]) -> None:
        in_network(self._holder.pid, ["ip", "-batch", "-"], lines)


def _token_bucket(bandwidth: str) -> str:
    match = _RATE.fullmatch(bandwidth)
    if match is None:
        raise BedError(f"a bandwidth is written as 100mbit or 2.5gbit, not {bandwidth!r}")
    bits_per_second = float(match[1]) * _UNITS[match[2]]
    burst = max(_LEAST_BURST_BYTES, int(bits_per_second / 8 * _BURST_SECONDS))
    return f"tbf rate {int(bits_per_second)}bit burst {burst}b latency {_LATENCY}"
