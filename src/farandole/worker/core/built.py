"""Horovod's questions about how it was built, answered for this engine. All may be asked before `init()`.

Scripts use them to choose a way that works, so each answer is the one that leads them right: `gloo` is Horovod's word
for a job that needs no MPI. What a job does use, `carrier` says.
"""

from __future__ import annotations


def mpi_built() -> bool:
    """Return whether jobs can use MPI: yes, where an MPI library is when they start; it is loaded then."""
    return True


def gloo_built() -> bool:
    """Return whether jobs can do without MPI: yes."""
    return True


def nccl_built() -> int:
    """Return the version of NCCL that moves GPU tensors: 0, they are staged through the host."""
    return 0


def ddl_built() -> bool:
    """Return whether IBM's DDL moves tensors: no."""
    return False


def ccl_built() -> bool:
    """Return whether Intel's oneCCL moves tensors: no."""
    return False


def cuda_built() -> bool:
    """Return whether the engine itself works on CUDA memory: no, tensors are staged through the host."""
    return False


def rocm_built() -> bool:
    """Return whether the engine itself works on ROCm memory: no, tensors are staged through the host."""
    return False


def sycl_built() -> bool:
    """Return whether the engine itself works on memory of Intel's GPUs: no, tensors are staged through the host."""
    return False
