"""farandole with the backend mpi: MPICH's mpiexec starts the workers, and MPICH carries what goes between hosts."""

from __future__ import annotations

from benchmarks.peers import mpi, mpich
from benchmarks.peers.base import Launch, Setup
from benchmarks.peers.farandole import join

__all__ = ["NAME", "join", "launches", "missing"]

NAME = "farandole over MPICH"


def missing() -> str | None:
    """Return why it cannot be used; None if it can."""
    return mpi.missing("mpich")


def launches(setup: Setup) -> list[Launch]:
    """Return one mpiexec."""
    library = str(mpi.folder("mpich") / "lib" / "libmpi_abi.so.1")
    own = {"FARANDOLE_BACKEND": "mpi", "FARANDOLE_MPI_LIBRARY": library}
    if setup.bed is not None:
        own["FARANDOLE_NETWORK"] = setup.bed.device
    return [Launch(launch.command, {**launch.environment, **own}) for launch in mpich.launches(setup)]
