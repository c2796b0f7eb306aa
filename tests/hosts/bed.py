"""The test bed: hosts made of namespaces, the wires between them, and faults of both.

Each host has its own namespaces for network, mounts, host name, IPC and processes, an sshd, and memory file systems for
users' files; they share only a network, and the machine's Python and programs. An additional host, `desk`, has no sshd:
jobs are started from there. Names resolve, and `ssh h2` works, on all of them.

Nothing is created outside of the namespaces, which end with the process that opened the bed, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import NamedTuple

from tests.hosts import ssh
from tests.hosts.errors import BedError
from tests.hosts.host import PRIVATE_FOLDERS, Host, blueprint, needed_inside
from tests.hosts.namespaces import NSENTER, in_network
from tests.hosts.switch import LONGEST_NETWORK_NAME, Plug, Switch

_TOOLS = ("unshare", NSENTER, "ip", "tc", "iptables", "ip6tables", ssh.SSHD, "ssh", "ssh-keygen")
_MOST_HOSTS = 200
# What belongs to the bed, not to those who use it; newer sshds are several programs.
_OWN_PROGRAMS = ("sshd", "sshd-session", "sshd-auth")


class Process(NamedTuple):
    """A process on a host: its id there, and its command line."""

    pid: int
    command: str


def why_not() -> str | None:
    """Return why hosts cannot be created on this machine, and what to do; None: they can."""
    if sys.platform != "linux":
        return "hosts are made of Linux namespaces"
    if os.geteuid() != 0:
        return "only root may make hosts; run the tests as root"
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"no {', no '.join(lacking)} on this machine; tools/provision installs what hosts are made with"
    attempt = ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--mount-proc", "true"]
    done = subprocess.run(attempt, capture_output=True, text=True, check=False)
    return f"no namespaces here ({done.stderr.strip()}); run outside of this container" if done.returncode else None


class Bed:
    """Some hosts, which exist while the context is open.

    Attributes:
        hosts: h1, h2 and so on.
        desk: the machine that jobs are started from; it has no sshd.
        networks: the names of the networks, and of the devices on every host.
    """

    def __init__(
        self,
        hosts: int,
        *,
        ipv6: bool = False,
        networks: Sequence[str] = ("eth0",),
        bandwidth: str | Mapping[str, str] | None = None,
        unknown: Collection[str] = (),
        keep: Collection[str] = (),
    ) -> None:
        """Define the bed; entering the context creates it.

        Args:
            hosts: the number of hosts, without the desk.
            ipv6: whether the hosts have only IPv6 addresses.
            networks: the networks, in each of which every host has a device and an address; names resolve to the first.
                `h1-NETWORK` is the name of h1 in another network.
            bandwidth: the bandwidth of each host in each direction, such as `1gbit`; for all networks, or by name.
            unknown: names of hosts whose key is not in the known hosts.
            keep: files and folders of the machine that the hosts share, although they are in private folders.

        Raises:
            BedError: such a bed is not possible.
        """
        if not 1 <= hosts <= _MOST_HOSTS:
            raise BedError(f"a bed has 1 to {_MOST_HOSTS} hosts, not {hosts}")
        if any(len(network) > LONGEST_NETWORK_NAME for network in networks):
            raise BedError(f"a network's name has at most {LONGEST_NETWORK_NAME} characters")
        self.networks = tuple(networks)
        self._bits = 64 if ipv6 else 24
        self._subnets = [
            ip_network(f"fd77:{number}::/64" if ipv6 else f"10.77.{number}.0/24")
            for number in range(1, len(networks) + 1)
        ]
        self.hosts = [self._describe(f"h{number}", number) for number in range(1, hosts + 1)]
        self.desk = self._describe("desk", hosts + 1)
        self._bandwidth = dict.fromkeys(networks, bandwidth) if isinstance(bandwidth, str) else dict(bandwidth or {})
        self._unknown = frozenset(unknown)
        self._kept = needed_inside(PRIVATE_FOLDERS, keep)
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> Bed:
        """Create the hosts.

        Raises:
            BedError: the machine does not allow it.
        """
        try:
            self._open()
        except BaseException:
            self._resources.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End everything on the hosts, and remove them."""
        self._resources.close()

    def cut(self, host: Host, *, network: str | None = None) -> None:
        """Cut a host off from all others, on one network or on all. Its link stays up: only silence shows the fault."""
        self._switch.cut(self._plugs([host], network))

    def restore(self, host: Host, *, network: str | None = None) -> None:
        """Undo `cut`."""
        self._switch.restore(self._plugs([host], network))

    def cut_between(self, one: Host, other: Host, *, network: str | None = None) -> None:
        """Drop all packets between two hosts; both still reach all others."""
        self.block(one, other, network=network)
        self.block(other, one, network=network)

    def restore_between(self, one: Host, other: Host, *, network: str | None = None) -> None:
        """Undo `cut_between`."""
        self.unblock(one, other, network=network)
        self.unblock(other, one, network=network)

    def block(self, sender: Host, receiver: Host, *, network: str | None = None) -> None:
        """Make the receiver's firewall drop the sender's packets; the other direction stays open."""
        self._set_firewall("--insert", sender, receiver, network)

    def unblock(self, sender: Host, receiver: Host, *, network: str | None = None) -> None:
        """Undo `block`."""
        self._set_firewall("--delete", sender, receiver, network)

    def shape(self, bandwidth: str | None, *, host: Host | None = None, network: str | None = None) -> None:
        """Limit the bandwidth of one host or all, on one network or on all; None removes the limit."""
        self._switch.shape(self._plugs(self._all() if host is None else [host], network), bandwidth)

    def die(self, host: Host) -> None:
        """Switch a host off: the others receive nothing, not even the end of connections."""
        self.cut(host)
        host.kill()

    def processes(self, host: Host) -> list[Process]:
        """Return the processes on a host, except its process 1, sshd, and ended processes."""
        found = []
        for folder in host.path("/proc").glob("[0-9]*"):
            # It may end while it is looked at.
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                name = (folder / "comm").read_text().strip()
                if command and folder.name != "1" and name not in _OWN_PROGRAMS:
                    found.append(Process(int(folder.name), command))
        return sorted(found)

    def make_private(self, host: Host, folder: str) -> None:
        """Give a host a private copy of a folder of the machine: changes affect only this host.

        Files below other mounts are not copied.
        """
        layers = f"/run/bed/layers{folder}"
        options = f"lowerdir={folder},upperdir={layers}/upper,workdir={layers}/work"
        script = 'mkdir -p "$1/upper" "$1/work" && mount -t overlay overlay -o "$2" "$3"'
        done = host.run(["sh", "-c", script, "sh", layers, options, folder])
        if done.returncode:
            raise BedError(f"{host.name} gets no copy of {folder}: {done.stderr.strip()}")

    def hide(self, host: Host, path: str) -> None:
        """Hide a file, link or folder of the machine from one host."""
        self.make_private(host, os.path.dirname(path))
        done = host.run(["rm", "-r", path])
        if done.returncode:
            raise BedError(f"{path} cannot be hidden from {host.name}: {done.stderr.strip()}")

    def _describe(self, name: str, number: int) -> Host:
        addresses = [str(subnet[number]) for subnet in self._subnets]
        return Host(name, number, dict(zip(self.networks, addresses, strict=True)))

    def _all(self) -> Iterator[Host]:
        yield from self.hosts
        yield self.desk

    def _open(self) -> None:
        self._switch = Switch(self.networks)
        self._resources.callback(self._switch.close)
        identity, *host_keys = ssh.make_keys(1 + len(self.hosts))
        client = ssh.client_files(identity, self._known_hosts(host_keys))
        environment = {name: os.environ[name] for name in ssh.FORWARDED if name in os.environ}
        for host, key in zip(self.hosts, host_keys, strict=True):
            server = ssh.server_files(identity, key, environment)
            self._switch_on(host, {**client, **server}, ssh.server_command())
        self._switch_on(self.desk, client, ())
        self._connect()
        for host in self._all():
            host.await_ready()

    def _switch_on(self, host: Host, files: Mapping[str, tuple[str, int]], daemon: Sequence[str]) -> None:
        self._resources.callback(host.close)
        host.switch_on(blueprint(host.name, self._kept, files, self._system_files(host), daemon))

    def _connect(self) -> None:
        for host in self._all():
            host.await_namespaces()
        self._switch.connect(self._plugs(self._all(), None))
        for host in self._all():
            lines = ["link set dev lo up"]
            for network, address in host.addresses.items():
                # Without detection of duplicates, which takes a second, the address is there at once.
                lines.append(f"address add {address}/{self._bits} dev {network}" + " nodad" * (self._bits == 64))
                lines.append(f"link set dev {network} up")
            in_network(host.pid, ["ip", "-batch", "-"], lines)
        for network, bandwidth in self._bandwidth.items():
            self.shape(bandwidth, network=network)

    def _system_files(self, host: Host) -> dict[str, str]:
        hosts = "".join(f"{address} {' '.join(names)}\n" for address, names in self._names().items())
        return {
            "/etc/hostname": f"{host.name}\n",
            "/etc/hosts": f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n{hosts}",
            # No name server: an unknown name is unknown at once.
            "/etc/resolv.conf": "",
            # sshd refuses accounts that are locked, as root's is in some images.
            "/etc/shadow": "root:*:19000:0:99999:7:::\nsshd:!:19000::::::\n",
        }

    def _names(self) -> dict[str, list[str]]:
        """Return the names by address."""
        names: dict[str, list[str]] = {}
        for host in self._all():
            for network, address in host.addresses.items():
                names[address] = [f"{host.name}-{network}"]
            names[host.address].insert(0, host.name)
        return names

    def _known_hosts(self, keys: Sequence[ssh.Key]) -> dict[str, list[str]]:
        names = self._names()
        return {
            key.public: [word for address in host.addresses.values() for word in (*names[address], address)]
            for host, key in zip(self.hosts, keys, strict=True)
            if host.name not in self._unknown
        }

    def _plugs(self, hosts: Collection[Host] | Iterator[Host], network: str | None) -> list[Plug]:
        return [
            Plug(host.number, name, host.pid, self._hardware_address(host, name))
            for host in hosts
            for name in self.networks
            if network in (None, name)
        ]

    def _hardware_address(self, host: Host, network: str) -> str:
        return f"02:77:00:00:{self.networks.index(network):02x}:{host.number:02x}"

    def _set_firewall(self, change: str, sender: Host, receiver: Host, network: str | None) -> None:
        for plug in self._plugs([sender], network):
            # By hardware address: the addresses that the kernel makes up for IPv6 are the sender's too.
            rule = ("-i", plug.network, "-m", "mac", "--mac-source", plug.hardware_address, "-j", "DROP")
            in_network(receiver.pid, ["iptables", "--wait", change, "INPUT", *rule])
            # IPv6 finds neighbours with what a firewall sees; without them the other direction would fail as well.
            in_network(receiver.pid, ["ip6tables", "--wait", change, "INPUT", "!", "-p", "icmpv6", *rule])
