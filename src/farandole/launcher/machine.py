"""What the launcher needs to know about the machine it runs on, read once."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """One host, as the plan sees it."""

    hostname: str
    cores: int
    """That this process may use."""
    gpus: int
    """That CUDA_VISIBLE_DEVICES leaves visible."""
    directory: str
    environment: Mapping[str, str]


def look() -> Machine:
    """Return the facts about this machine and this process."""
    environment = dict(os.environ)
    return Machine(
        hostname=socket.gethostname(),
        cores=len(os.sched_getaffinity(0)),
        gpus=visible_gpus(environment, count_gpus),
        directory=os.getcwd(),
        environment=environment,
    )


def count_gpus() -> int:
    """Return how many NVIDIA GPUs there are, without any driver library."""
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
    """Return how many GPUs CUDA will show to a process with that environment.

    As CUDA reads it, the list in CUDA_VISIBLE_DEVICES ends at the first entry that is no device, such as -1.
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
