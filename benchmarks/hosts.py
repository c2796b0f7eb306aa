"""Several hosts on one machine: network namespaces with a veth each, joined by a bridge, shaped by `tc tbf`.

The bridge has a namespace of its own, so nothing is changed in the one this process is in. All hosts share the
machine's cores: what is measured between them is what the libraries do with a given wire, not with given processors.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

_NETWORK = "10.77.0"
_TOOLS = ("ip", "tc", "unshare")
# The burst: enough for the largest segment that the kernel hands down, and for the bytes of one timer tick.
_BURST_SECONDS = 0.001
_LEAST_BURST = 256 * 1024
_LATENCY = "20ms"


class BedError(Exception):
    """The hosts cannot be made here; the text says why."""


class Bed:
    """The hosts.

    Attributes:
        addresses: one for each host; all on one network.
        device: the name of each host's only interface, beside loopback.
        agent: a program that is called as ssh is, `agent HOST COMMAND...`, where HOST is an address.
    """

    device = "eth0"

    def __init__(self, hosts: int, folder: Path) -> None:
        """Describe the bed; `up` makes it. The agent is written to `folder`."""
        self.addresses = [f"{_NETWORK}.{host + 1}" for host in range(hosts)]
        self.agent = folder / f"agent-{hosts}"
        mark = secrets.token_hex(4)  # A killed process may have left names with its process id.
        self._names = [f"farandole-{mark}-{host}" for host in range(hosts)]
        self._switch = f"farandole-{mark}-switch"

    def enter(self, host: int) -> list[str]:
        """Return the prefix of a command that runs it on a host: in its network, and with a host name of its own."""
        inside = f'hostname {shlex.quote(f"h{host}")} && exec "$@"'
        return ["ip", "netns", "exec", self._names[host], "unshare", "--uts", "sh", "-c", inside, "sh"]

    def up(self) -> None:
        """Make namespaces, bridge and wires.

        Raises:
            BedError: the machine does not allow it.
        """
        lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if lacking or os.geteuid() != 0:
            what = f"no {' and no '.join(lacking)} on this machine" if lacking else "only root may make namespaces"
            raise BedError(f"{what}: to measure between hosts, run as root on a machine with iproute2 and util-linux")
        self._write_agent()
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "bridge", "up")
        for host, (name, address) in enumerate(zip(self._names, self.addresses, strict=True)):
            _run("ip", "netns", "add", name)
            plug = ("peer", "name", f"port{host}", "netns", self._switch)
            _run("ip", "-n", name, "link", "add", self.device, "type", "veth", *plug)
            _run("ip", "-n", self._switch, "link", "set", f"port{host}", "master", "bridge", "up")
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", self.device)
            for device in (self.device, "lo"):
                _run("ip", "-n", name, "link", "set", device, "up")

    def shape(self, bits_per_second: int | None) -> None:
        """Limit each host's bandwidth in both directions; None lifts the limit. It applies to live connections, too."""
        wires = [(name, self.device) for name in self._names]
        wires += [(self._switch, f"port{host}") for host in range(len(self._names))]
        for name, device in wires:
            if bits_per_second is None:
                # Fails if there is no limit to lift.
                subprocess.run(["tc", "-n", name, "qdisc", "del", "dev", device, "root"], stderr=subprocess.DEVNULL)
                continue
            burst = max(_LEAST_BURST, int(bits_per_second / 8 * _BURST_SECONDS))
            limit = ("rate", f"{bits_per_second}bit", "burst", f"{burst}b", "latency", _LATENCY)
            _run("tc", "-n", name, "qdisc", "replace", "dev", device, "root", "tbf", *limit)

    def down(self) -> None:
        """End all processes that still run on the hosts, and remove the hosts."""
        for name in (*self._names, self._switch):
            listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
            for process in listed.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), 9)
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)

    def _write_agent(self) -> None:
        cases = "".join(
            f"  {address}) exec {shlex.join(self.enter(host)[:-4])} sh -c 'hostname h{host}; '\"$*\" ;;\n"
            for host, address in enumerate(self.addresses)
        )
        # mpiexec of MPICH passes ssh's -x.
        text = f'#!/bin/sh\n[ "$1" = -x ] && shift\nhost=$1; shift\ncase $host in\n{cases}esac\n'
        self.agent.write_text(text + 'echo "no host $host" >&2; exit 1\n')
        self.agent.chmod(0o700)


@contextlib.contextmanager
def bed_of(hosts: int, folder: Path) -> Iterator[Bed]:
    """Make hosts, and remove them in the end in any case.

    Raises:
        BedError: the machine does not allow it.
    """
    bed = Bed(hosts, folder)
    try:
        bed.up()
        yield bed
    finally:
        bed.down()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BedError(f"`{shlex.join(command)}` failed: {done.stderr.strip()}; are namespaces allowed here?")
