"""What another launcher is asked to start, and whose program that launcher is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from farandole.launcher.job.host_list import Host


class Flavour(Enum):
    """Whose program it is. The value is what people call it."""

    OPEN_MPI_5 = "Open MPI 5"
    OPEN_MPI_4 = "Open MPI 4"
    MPICH = "MPICH"
    INTEL_MPI = "Intel MPI"
    SLURM = "Slurm"


@dataclass(frozen=True)
class LaunchOrder:
    """What is to be started."""

    program: str
    size: int
    hosts: tuple[Host, ...]
    """With their slots, which add up to the size. Empty: wherever the program starts things by itself."""
    names: tuple[str, ...]
    """Variables that workers on other hosts must get from the program's environment."""
    command: tuple[str, ...]
    root: bool = False
    """Whether root starts it."""
    mpi: bool = False
    """Whether the workers use MPI, and not only its launcher."""


def written_with_slots(hosts: Sequence[Host]) -> str:
    """Write hosts with their slots, such as `h1:4,h2:4`."""
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)
