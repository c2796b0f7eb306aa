"""What Open MPI and MPICH share: mpi4py on numpy arrays that are allocated once, in place wherever MPI can.

Both distributions install `mpirun` and `libmpi.so`, so each has a folder of its own, `peers/<name>` in the virtual
environment; mpi4py loads the library that the environment leads it to.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.computation import compute
from benchmarks.gradients import plan_buckets
from benchmarks.peers.base import Call, Peer, Unsupported, check, proven


def folder(name: str) -> Path:
    """Return where a distribution of MPI is installed."""
    return Path(sys.prefix) / "peers" / name


def missing(name: str) -> str | None:
    """Return why that MPI cannot be used; None if it can."""
    if not (folder(name) / "bin" / "mpiexec").exists():
        return f"not installed in {folder(name)}; `make bench` installs it"
    return None


def library_environment(name: str) -> dict[str, str]:
    """Return the variables that lead mpi4py to that library."""
    path = os.pathsep.join(filter(None, [str(folder(name) / "lib"), os.environ.get("LD_LIBRARY_PATH")]))
    return {"MPI4PY_MPIABI": name, "LD_LIBRARY_PATH": path}


class MpiPeer(Peer):
    """A rank of MPI_COMM_WORLD."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self.rank = self._world.rank
        self.size = self._world.size

    def barrier(self) -> None:
        self._world.Barrier()

    def leave(self) -> None:
        self._mpi.Finalize()

    def _array(self, count: int, value: float = 0.0) -> Any:
        import numpy

        return numpy.full(count, value, dtype=numpy.float32)

    def allreduce(self, bytes: int, dtype: str = "float32", where: str = "ordinary") -> Call:
        if dtype != "float32" or where != "ordinary":
            raise Unsupported(f"has no {dtype}" if dtype != "float32" else "has no arena")
        array = self._array(bytes // 4, self.rank + 1)
        world, in_place = self._world, self._mpi.IN_PLACE

        def call() -> None:
            world.Allreduce(in_place, array)

        return proven(call, self.size, "allreduce", array)

    def latency(self) -> Call:
        array = self._array(1, self.rank + 1)
        world, in_place = self._world, self._mpi.IN_PLACE

        def call() -> None:
            world.Iallreduce(in_place, array).Wait()

        return proven(call, self.size, "latency", array)

    def many(self, count: int, bytes: int) -> Call:
        arrays = [self._array(bytes // 4, self.rank + 1) for _ in range(count)]
        world, mpi = self._world, self._mpi

        def call() -> None:
            mpi.Request.Waitall([world.Iallreduce(mpi.IN_PLACE, array) for array in arrays])

        return proven(call, self.size, "many", *arrays)

    def gradients(self, communicate: bool = True, compute_units: int = 0) -> Call:
        # As DDP does: buckets, each started when its last gradient is ready.
        buckets = [(self._array(elements, self.rank + 1), members) for elements, members in plan_buckets()]
        world, mpi = self._world, self._mpi

        def call() -> None:
            requests = []
            for array, members in buckets:
                compute(members * compute_units)
                if communicate:
                    requests.append(world.Iallreduce(mpi.IN_PLACE, array))
            mpi.Request.Waitall(requests)

        return proven(call, self.size, "gradients", *(array for array, _ in buckets)) if communicate else call

    def allgather(self, bytes: int) -> Call:
        part, whole = self._array(bytes // 4 // self.size, self.rank + 1), self._array(bytes // 4)
        self._world.Allgather(part, whole)
        check(whole[-1], self.size, "allgather")
        return lambda: self._world.Allgather(part, whole)

    def broadcast(self, bytes: int) -> Call:
        array = self._array(bytes // 4, self.rank + 1)
        self._world.Bcast(array, root=0)
        check(array[-1], 1, "broadcast")
        return lambda: self._world.Bcast(array, root=0)

    def reducescatter(self, bytes: int) -> Call:
        whole, part = self._array(bytes // 4, self.rank + 1), self._array(bytes // 4 // self.size)
        self._world.Reduce_scatter_block(whole, part)
        check(part[-1], self.size * (self.size + 1) / 2, "reducescatter")
        return lambda: self._world.Reduce_scatter_block(whole, part)

    def alltoall(self, bytes: int) -> Call:
        sent, received = self._array(bytes // 4, self.rank + 1), self._array(bytes // 4)
        self._world.Alltoall(sent, received)
        check(received[-1], self.size, "alltoall")
        return lambda: self._world.Alltoall(sent, received)


def join() -> MpiPeer:
    """Enter MPI's world."""
    return MpiPeer()
