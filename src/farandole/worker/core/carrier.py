"""Horovod's functions that report whether this job's data is carried by MPI, which Horovod calls a controller."""

from __future__ import annotations

from farandole.errors import InvalidRequestError
from farandole.worker.core import basics


def mpi_enabled() -> bool:
    """Return whether this job communicates through MPI: False before `init()`, because it is not known yet."""
    return basics.is_initialized() and basics.identity().settings.backend == "mpi"


def gloo_enabled() -> bool:
    """Return whether this job runs without MPI. `gloo` is Horovod's word for that."""
    return not mpi_enabled()


def mpi_threads_supported() -> bool:
    """Return whether other threads may use MPI as well: yes, because farandole requests that when it starts MPI.

    Raises:
        ValueError: this job does not use MPI.
    """
    if not mpi_enabled():
        raise InvalidRequestError(
            "this job does not use MPI, so nothing is known about its threads: call mpi_enabled() first."
        )
    return True
