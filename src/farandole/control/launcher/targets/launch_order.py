"""Requests to external launchers, and the vendors of these launchers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from farandole.control.launcher.job.host_list import Host
from farandole.errors import SpecError


class Flavour(Enum):
    """The vendor of an external launcher. The value is the name shown to people."""

    OPEN_MPI_5 = "Open MPI 5"
    OPEN_MPI_4 = "Open MPI 4"
    MPICH = "MPICH"
    INTEL_MPI = "Intel MPI"
    SLURM = "Slurm"


@dataclass(frozen=True)
class Starter:
    """The program that is to start the workers, with the user's arguments for it."""

    program: str
    """`mpirun` or `srun`."""
    arguments: tuple[str, ...] = ()
    """The user's own arguments for the program; they follow farandole's."""
    binding: tuple[str, ...] | None = None
    """The user's arguments that bind workers to cores, in place of the default ones; None: the default ones."""


@dataclass(frozen=True)
class LaunchOrder:
    """The job for an external launcher to start."""

    program: str
    size: int
    hosts: tuple[Host, ...]
    """The hosts with their slots, which add up to the size. Empty: the program's default."""
    names: tuple[str, ...]
    """Variables that workers on other hosts must get from the program's environment."""
    command: tuple[str, ...]
    root: bool = False
    """Whether the user is root."""
    mpi: bool = False
    """Whether the workers use MPI, not only its launcher."""
    arguments: tuple[str, ...] = ()
    """The user's own arguments."""
    binding: tuple[str, ...] | None = None
    """The user's arguments that bind workers to cores, as in `Starter`."""

    def bound_by(self, *ours: str) -> tuple[str, ...]:
        """Return the arguments that bind workers to cores."""
        return ours if self.binding is None else self.binding


def read_arguments(flag: str, text: str) -> tuple[str, ...]:
    """Split arguments for the program as a shell would.

    Raises:
        SpecError: a quotation is not closed.

    Example:
        >>> read_arguments("--launcher-args", "-v --mca btl 'tcp,self'")
        ('-v', '--mca', 'btl', 'tcp,self')
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise SpecError(f"{flag}: {text!r} cannot be split: {error}", "quote it as a shell would") from None


def written_with_slots(hosts: Sequence[Host]) -> str:
    """Format hosts with their slots, as `h1:4,h2:4`."""
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)
