"""What another launcher is asked to start, and whose program that launcher is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from farandole.control.launcher.job.host_list import Host
from farandole.errors import SpecError


class Flavour(Enum):
    """Whose program it is. The value is what people call it."""

    OPEN_MPI_5 = "Open MPI 5"
    OPEN_MPI_4 = "Open MPI 4"
    MPICH = "MPICH"
    INTEL_MPI = "Intel MPI"
    SLURM = "Slurm"


@dataclass(frozen=True)
class Starter:
    """The program that is to start the workers, and what the user tells it."""

    program: str
    """`mpirun` or `srun`."""
    arguments: tuple[str, ...] = ()
    """Of the user's own, for the program; they follow ours."""
    binding: tuple[str, ...] | None = None
    """What says which worker gets which cores, instead of what we say; None: ours."""


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
    arguments: tuple[str, ...] = ()
    """Of the user's own."""
    binding: tuple[str, ...] | None = None
    """As in `Starter`."""

    def bound_by(self, *ours: str) -> tuple[str, ...]:
        """Return the arguments that say which worker gets which cores."""
        return ours if self.binding is None else self.binding


def read_arguments(flag: str, text: str) -> tuple[str, ...]:
    """Take apart arguments for the program as a shell would.

    Raises:
        SpecError: a quotation does not end.

    Example:
        >>> read_arguments("--launcher-args", "-v --mca btl 'tcp,self'")
        ('-v', '--mca', 'btl', 'tcp,self')
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise SpecError(f"{flag}: {text!r} cannot be taken apart: {error}", "quote it as a shell would") from None


def written_with_slots(hosts: Sequence[Host]) -> str:
    """Write hosts with their slots, such as `h1:4,h2:4`."""
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)
