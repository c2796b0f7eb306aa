"""The facts about its host that an agent reports first."""

from __future__ import annotations

import os
import socket
import sys
import time

from farandole.base.installed import own_version
from farandole.base.wire.interfaces import addresses
from farandole.control.agent.gpus import visible_gpus
from farandole.control.agent.protocol import Interface, Ready


def collect_facts(roster: str) -> Ready:
    """Return the facts about this machine; `roster` is the host:port at which workers reach the roster."""
    return Ready(
        version=own_version(),
        python=".".join(map(str, sys.version_info[:3])),
        hostname=socket.gethostname(),
        machine=machine_id(),
        cores=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
        gpus=len(visible_gpus(os.environ)),
        interfaces=tuple(Interface(each.interface, each.address, each.prefix, each.speed) for each in addresses()),
        roster=roster,
        free_port=_free_port(),
        clock=time.time(),
    )


def machine_id() -> str:
    """Return an id that is equal for two processes if, and only if, they have the same kernel and network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()


def _free_port() -> int:
    """Return a port that was free a moment ago, on all addresses."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
