"""The facts about its host that an agent reports first."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from farandole.base.installed import own_version
from farandole.base.wire.interfaces import addresses
from farandole.control.agent.protocol import Interface, Ready


def collect_facts(roster: str) -> Ready:
    """Return the facts about this machine; `roster` is where workers reach the roster."""
    return Ready(
        version=own_version(),
        python=".".join(map(str, sys.version_info[:3])),
        hostname=socket.gethostname(),
        machine=machine_id(),
        cores=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
        gpus=visible_gpus(os.environ, count_gpus),
        interfaces=tuple(Interface(each.interface, each.address, each.prefix, each.speed) for each in addresses()),
        roster=roster,
        free_port=_free_port(),
        clock=time.time(),
    )


def machine_id() -> str:
    """Return an id that two processes share if, and only if, they see the same kernel and the same network."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs, without any driver library."""
    devices = [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia[0-9]+", name)]
    if devices:
        return len(devices)
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        listing = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listing.splitlines())


def visible_gpus(environment: Mapping[str, str], count: Callable[[], int]) -> int:
    """Return the number of GPUs that CUDA shows to a process with that environment.

    As in CUDA, the list in CUDA_VISIBLE_DEVICES ends at the first entry that is not a device, such as -1.
    """
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return count()
    visible = 0
    for entry in listed.split(","):
        if not re.fullmatch(r"\s*([0-9]+|GPU-[\w-]+|MIG-[\w/-]+)\s*", entry):
            break
        visible += 1
    return visible


def _free_port() -> int:
    """Return a port that was free a moment ago, on all addresses."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
