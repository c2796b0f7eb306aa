"""The command lines of external launchers, as data: a table of how each of them starts our workers."""

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
    """Tell from what `--version` prints whose program it is.

    Raises:
        SpecError: it is none that we know.

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
        f"it is not known whose program this is; --version prints: {first}",
        "known are Open MPI, MPICH, Intel MPI and Slurm. Or start farandole without it: -H h1:4,h2:4",
    )


# Which programs start what uses a library of that name. A library with the standard ABI may be anybody's.
_STARTED_BY: Mapping[str, tuple[Flavour, ...]] = {
    "libmpi.so.12": (Flavour.MPICH, Flavour.INTEL_MPI, Flavour.SLURM),
    "libmpi.so.40": (Flavour.OPEN_MPI_4, Flavour.OPEN_MPI_5, Flavour.SLURM),
}


def check_library(flavour: Flavour, library: str) -> None:
    """Refuse an MPI library whose processes that program does not connect.

    Args:
        flavour: whose program it is.
        library: the path that is asked for; "": none is, so that the one beside the program is taken.

    Raises:
        SpecError: they do not belong together.

    Example:
        >>> check_library(Flavour.OPEN_MPI_5, "/opt/mpich/lib/libmpi_abi.so.1")
    """
    for name, flavours in _STARTED_BY.items():
        if name in os.path.basename(library) and flavour not in flavours:
            raise SpecError(
                f"FARANDOLE_MPI_LIBRARY={library}: that library does not follow the ABI of {flavour.value}, whose "
                "program would start the workers; it would not connect them",
                "unset the variable, so that the library beside that program is used, or put the program of that "
                "library's MPI first on the PATH",
            )


def command_line(flavour: Flavour, order: LaunchOrder) -> tuple[str, ...]:
    """Return what to run. Pure: it depends on nothing but its arguments.

    Raises:
        SpecError: that program cannot start this.
    """
    for host in order.hosts:
        if "@" in host.name or ":" in host.name:
            raise SpecError(
                f"{order.program} takes names of hosts only, not {host.name}",
                "give the host a name, and the user, in ~/.ssh/config",
            )
    return (order.program, *_ARGUMENTS[flavour](order))


def environment_of(flavour: Flavour) -> Mapping[str, str]:
    """Return variables that the program itself needs where it has no option for them."""
    # Workers are not bound to cores: their threads would have to share one.
    return {"I_MPI_PIN": "0"} if flavour is Flavour.INTEL_MPI else {}
