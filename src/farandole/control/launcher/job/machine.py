"""Facts about the machine that the launcher runs on, read once."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from farandole.control.agent.gpus import visible_gpus


@dataclass(frozen=True)
class Machine:
    """One machine, as the plan sees it."""

    hostname: str
    cores: int
    """Number of cores that this process may use."""
    gpus: int
    """Number of GPUs that CUDA_VISIBLE_DEVICES leaves visible."""
    directory: str
    environment: Mapping[str, str]


def look() -> Machine:
    """Return the facts about this machine and this process."""
    environment = dict(os.environ)
    return Machine(
        hostname=socket.gethostname(),
        cores=len(os.sched_getaffinity(0)),
        gpus=len(visible_gpus(environment)),
        directory=os.getcwd(),
        environment=environment,
    )
