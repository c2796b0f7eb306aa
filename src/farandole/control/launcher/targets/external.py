"""The command lines of external launchers, as data: a table of how each of them starts workers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

from farandole.control.launcher.targets import mpirun, srun
from farandole.control.launcher.targets.launch_order import Flavour, LaunchOrder
from farandole.errors import SpecError

KINDS = ("mpirun", "srun")

_ARGUMENTS: Mapping[Flavour, Callable[[LaunchOrder], list[str]]] = {
    Flavour.OPEN_MPI_5: mpirun.open_mpi_5,
    Flavour.OPEN_MPI_4: mpirun.open_mpi_4,
    Flavour.MPICH: mpirun.mpich,
    Flavour.INTEL_MPI: mpirun.intel_mpi,
    Flavour.SLURM: srun.slurm,
}


def flavour_of(version: str) -> Flavour:
    """Identify the vendor of the program from the output of `--version`.

    Raises:
        SpecError: the vendor is not known.

    Example:
        >>> flavour_of("mpirun (Open MPI) 4.1.8")
        <Flavour.OPEN_MPI_4: 'Open MPI 4'>
    """
    open_mpi = re.search(r"\(Open MPI\) (\d+)", version)
    if open_mpi:
        return Flavour.OPEN_MPI_5 if int(open_mpi[1]) >= 5 else Flavour.OPEN_MPI_4
    for mark, flavour in (
        (r"Intel\(R\) MPI", Flavour.INTEL_MPI),
        (r"HYDRA", Flavour.MPICH),
        (r"^slurm", Flavour.SLURM),
    ):
        if re.search(mark, version):
            return flavour
    first = version.strip().splitlines()[0] if version.strip() else "nothing"
    raise SpecError(
        f"this program is not known; --version prints: {first}",
        "use Open MPI, MPICH, Intel MPI or Slurm, or start farandole without it: -H h1:4,h2:4",
    )


# The programs that can start workers for a library of this name. A library with the standard ABI may be of any vendor.
_STARTED_BY: Mapping[str, tuple[Flavour, ...]] = {
    "libmpi.so.12": (Flavour.MPICH, Flavour.INTEL_MPI, Flavour.SLURM),
    "libmpi.so.40": (Flavour.OPEN_MPI_4, Flavour.OPEN_MPI_5, Flavour.SLURM),
}


def check_library(flavour: Flavour, library: str) -> None:
    """Reject an MPI library that does not belong to the program that starts the workers.

    Args:
        flavour: vendor of the program.
        library: path that the user has set; "": none, so the library beside the program is used.

    Raises:
        SpecError: the library does not belong to the program.

    Example:
        >>> check_library(Flavour.OPEN_MPI_5, "/opt/mpich/lib/libmpi_abi.so.1")
    """
    for name, flavours in _STARTED_BY.items():
        if name in os.path.basename(library) and flavour not in flavours:
            raise SpecError(
                f"FARANDOLE_MPI_LIBRARY={library}: this library does not follow the ABI of {flavour.value}, whose "
                "program would start the workers; it would not connect them",
                "unset the variable, so that the library beside that program is used, or put the program of that "
                "library's MPI first on the PATH",
            )


def command_line(flavour: Flavour, order: LaunchOrder) -> tuple[str, ...]:
    """Return the command to run. Pure: it depends only on its arguments.

    Raises:
        SpecError: the program cannot start this job.
    """
    for host in order.hosts:
        if "@" in host.name or ":" in host.name:
            raise SpecError(
                f"{order.program} accepts plain host names only, not {host.name}",
                "give the host a name, and the user, in ~/.ssh/config",
            )
    return (order.program, *_ARGUMENTS[flavour](order))


def environment_of(flavour: Flavour) -> Mapping[str, str]:
    """Return environment variables for the program, for choices for which it has no option."""
    # Workers are not bound to cores: their threads would have to share one.
    return {"I_MPI_PIN": "0"} if flavour is Flavour.INTEL_MPI else {}
