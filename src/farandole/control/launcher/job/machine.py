"""Facts about the machine that the launcher runs on, read once."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from farandole.control.agent.gpus import visible_gpus

# Of workers in elastic jobs. Such a worker may itself start a job, which need not be elastic.
_OF_ELASTIC_WORKERS = frozenset({"FARANDOLE_ELASTIC", "HOROVOD_ELASTIC", "FARANDOLE_WORKER"})


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
    """The variables that workers inherit."""


def look() -> Machine:
    """Return the facts about this machine and this process."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_ELASTIC_WORKERS}
    return Machine(
        hostname=socket.gethostname(),
        cores=len(os.sched_getaffinity(0)),
        gpus=len(visible_gpus(environment)),
        directory=os.getcwd(),
        environment=environment,
    )
