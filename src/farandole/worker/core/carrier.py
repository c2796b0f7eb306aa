"""Horovod's questions about what carries the data of this job, which it calls controllers: MPI, or what needs none."""

from __future__ import annotations

from farandole.errors import InvalidRequestError
from farandole.worker.core import basics


def mpi_enabled() -> bool:
    """Return whether this job talks through MPI: False before `init()`, as it is not known yet."""
    return basics.is_initialized() and basics.identity().settings.backend == "mpi"


def gloo_enabled() -> bool:
    """Return whether this job does without MPI. `gloo` is Horovod's word for that."""
    return not mpi_enabled()


def mpi_threads_supported() -> bool:
    """Return whether other threads may use MPI as well: yes, as farandole asks for that when it starts MPI.

    Raises:
        ValueError: this job does not use MPI.
    """
    if not mpi_enabled():
        raise InvalidRequestError("MPI is not used here, so nothing is known of its threads; ask mpi_enabled() first.")
    return True
