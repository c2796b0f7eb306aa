"""The command lines of external launchers, as data: a table of how each of them starts our workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from farandole.launcher.errors import SpecError
from farandole.launcher.targets import mpirun, srun
from farandole.launcher.targets.launch_order import Flavour, LaunchOrder

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
