"""Horovod's questions about how it was built, answered for this engine. All may be asked before `init()`.

Scripts use them to choose a way that works, so each answer is the one that leads them right: `gloo` is Horovod's word
for a job that needs no MPI, and such is every job here; nothing is there of what the other words stand for.
"""

from __future__ import annotations

from farandole.errors import InvalidRequestError


def mpi_threads_supported() -> bool:
    """Refuse to answer, as there is no MPI whose threads could be asked for.

    Raises:
        ValueError: always.
    """
    raise InvalidRequestError("MPI is not used here, so nothing is known of its threads; ask mpi_enabled() first.")


def mpi_enabled() -> bool:
    """Say whether this job talks through MPI: never."""
    return False


def mpi_built() -> bool:
    """Say whether jobs could talk through MPI: no."""
    return False


def gloo_enabled() -> bool:
    """Say whether this job does without MPI: always."""
    return True


def gloo_built() -> bool:
    """Say whether jobs can do without MPI: yes."""
    return True


def nccl_built() -> int:
    """Return the version of NCCL that moves GPU tensors: 0, they are staged through the host."""
    return 0


def ddl_built() -> bool:
    """Say whether IBM's DDL moves tensors: no."""
    return False


def ccl_built() -> bool:
    """Say whether Intel's oneCCL moves tensors: no."""
    return False


def cuda_built() -> bool:
    """Say whether the engine itself works on CUDA memory: no, tensors are staged through the host."""
    return False


def rocm_built() -> bool:
    """Say whether the engine itself works on ROCm memory: no, tensors are staged through the host."""
    return False


def sycl_built() -> bool:
    """Say whether the engine itself works on memory of Intel's GPUs: no, tensors are staged through the host."""
    return False
