"""MPICH, started by its own mpiexec (hydra)."""

from __future__ import annotations

from benchmarks.peers import mpi
from benchmarks.peers.base import WORKER, Launch, Setup, worker_environment
from benchmarks.peers.mpi import join

__all__ = ["NAME", "join", "launches", "missing"]

NAME = "MPICH"


def missing() -> str | None:
    """Return why it cannot be used; None if it can."""
    return mpi.missing("mpich")


def launches(setup: Setup) -> list[Launch]:
    """Return one mpiexec."""
    topology = setup.topology
    command = [str(mpi.folder("mpich") / "bin" / "mpiexec"), "-n", str(topology.size)]
    environment = worker_environment(setup) | mpi.library_environment("mpich")
    if topology.crowded:
        # Ranks that wait sleep for a moment. Without it, four ranks on two cores took six times as long.
        environment["MPIR_CVAR_ENABLE_HEAVY_YIELD"] = "1"
    if setup.bed is not None:
        command = [*setup.bed.enter(0), *command, "-ppn", str(topology.workers)]
        command += ["-hosts", ",".join(setup.bed.addresses), "-iface", setup.bed.device]
        command += ["-launcher", "ssh", "-launcher-exec", str(setup.bed.agent)]
        # UCX would find the memory that namespaces share, and real hosts do not.
        environment |= {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": setup.bed.device}
    return [Launch((*command, *WORKER), environment)]
