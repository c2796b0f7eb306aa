"""The interface of a peer.

A module of a peer has two sides. The conductor's side imports nothing heavy:

    NAME                      the name in tables
    missing()                 why it cannot be used on this machine, or None
    launches(setup)           the commands that start its workers on a setup

and the worker's side is `join()`, which enters the peer's world and returns a `Peer`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.hosts import Bed
from benchmarks.topology import Topology, cores

ROOT = Path(__file__).parents[2]
_NAMES = (
    "farandole",
    "farandole_mpi",
    "other_checkout",
    "gloo",
    "openmpi",
    "mpich",
    "farandole_tensorflow",
    "multi_worker",
    "farandole_jax",
    "jax_gloo",
)
MODULES = {name: f"benchmarks.peers.{name}" for name in _NAMES}
WORKER = (sys.executable, "-m", "benchmarks.worker")

Call = Callable[[], Any]


class Unsupported(Exception):
    """The peer cannot do this work; the text says why. All its ranks agree."""


class Wrong(AssertionError):
    """The peer computed a wrong result, so its times mean nothing."""


@dataclass(frozen=True)
class Launch:
    """One command that starts workers, and the variables that it gets in addition to this process's environment."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Setup:
    """The place in which a team is started."""

    peer: str
    topology: Topology
    folder: Path
    """The folder of this team, which is removed after the run."""
    socket: Path
    """The socket that the conductor listens on."""
    bed: Bed | None
    """The hosts, when there are several."""
    against: Path | None = None
    """The other checkout of farandole that is measured beside this one, if there is one."""


class Peer:
    """A worker's place in a peer's world. Its further methods are works: they return the call that is to be timed.

    A call may have attributes: `note`, a remark for the reader of the table; `times`, the number of calls it counts as;
    and `times_itself`, whether it returns the seconds that count.
    """

    rank: int
    size: int

    def barrier(self) -> None:
        """Wait for all ranks."""
        raise NotImplementedError

    def leave(self) -> None:
        """Leave the world in good order."""


def worker_environment(setup: Setup) -> dict[str, str]:
    """Return the variables of every worker, however it is started."""
    threads = str(max(1, cores() // setup.topology.size))
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "BENCHMARK_PEER": setup.peer,
        "BENCHMARK_SOCKET": str(setup.socket),
        "BENCHMARK_FOLDER": str(setup.folder),
        "BENCHMARK_HOSTS": ",".join(setup.bed.addresses) if setup.bed else "",
        "BENCHMARK_WORKERS": str(setup.topology.workers),
        # NumPy computes, with one thread for each worker, in all peers.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": threads,
    }


def proven(call: Call, size: int, what: str, *results: Any) -> Call:
    """Return a call that sums ones, twos and so on over `size` ranks in place, after its result was checked once.

    Args:
        call: the sum.
        size: the size of the world.
        what: its name in the error.
        results: arrays or tensors it works on, each filled with this worker's rank plus 1. They are zeros from then on,
            because the sum of sums of zeros stays what it is.
    """
    call()
    for result in results:
        check(float(result.reshape(-1)[-1]), size * (size + 1) / 2, what)
        result[...] = 0
    return call


def check(found: float, expected: float, what: str) -> None:
    """Raise `Wrong` unless a result is what it should be."""
    if found != expected:
        raise Wrong(f"{what} gave {found}, but should have given {expected}")
