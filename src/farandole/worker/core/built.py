"""Horovod's functions that report how it was built, answered for this engine. All may be called before `init()`.

Scripts use them to choose a way that works, so each answer leads to one: `gloo` is Horovod's word for a job that needs
no MPI. `carrier` says what a job actually uses.
"""

from __future__ import annotations

import json
import os
from functools import cache

from farandole.base import nccl_library
from farandole.errors import LibraryError
from farandole.worker.core import binding


def mpi_built() -> bool:
    """Return whether jobs can use MPI: yes, if an MPI library is installed; it is loaded when a job starts."""
    return True


def gloo_built() -> bool:
    """Return whether jobs can run without MPI: yes."""
    return True


def nccl_built() -> int:
    """Return the version of NCCL that jobs on GPUs use, such as 23007 for NCCL 2.30.7.

    Returns:
        0 if this build lacks NCCL's backend, or if no library of at least 2.19 is found.
    """
    if not _includes("nccl"):
        return 0
    found = nccl_library.version(os.environ.get("FARANDOLE_NCCL_LIBRARY", ""))
    return found if found >= nccl_library.OLDEST else 0


def ddl_built() -> bool:
    """Return whether IBM's DDL carries tensors: no."""
    return False


def ccl_built() -> bool:
    """Return whether Intel's oneCCL carries tensors: no."""
    return False


def cuda_built() -> bool:
    """Return whether a backend of this build works on CUDA memory; without one, tensors are copied through the host."""
    return _includes("nccl")


def rocm_built() -> bool:
    """Return whether the engine itself works on ROCm memory: no, tensors are staged through the host."""
    return False


def sycl_built() -> bool:
    """Return whether the engine itself works on memory of Intel's GPUs: no, tensors are staged through the host."""
    return False


@cache
def _includes(backend: str) -> bool:
    """Return whether this build of the native library includes a backend."""
    try:
        library = binding.load(os.environ.get("FARANDOLE_LIBRARY") or None)
    except LibraryError:
        return False  # init() reports what is wrong with it.
    rows = json.loads(library.farandole_backends())
    return any(row["name"] == backend and not row["absent"] for row in rows)
