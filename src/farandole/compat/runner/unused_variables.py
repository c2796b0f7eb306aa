"""Horovod's variables that have no effect here, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping

_ALGORITHM = "the engine and NCCL choose by size and topology"
_NO_BUILD = "nothing is built here: NCCL is loaded when a job needs it"
_OPERATION = "NCCL is used where it can be; FARANDOLE_GPU chooses"
_LIBRARY = "NCCL is loaded, not linked; FARANDOLE_NCCL_LIBRARY names another library"

UNUSED: Mapping[str, str] = {
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "Adasum does not use MPI",
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "the search has no such model",
    "HOROVOD_BATCH_D2D_MEMCOPIES": "tensors on a GPU are not copied by a kernel",
    "HOROVOD_CACHE_CAPACITY": "the engine remembers all requests",
    "HOROVOD_CCL_CACHE": "oneCCL is not used",
    "HOROVOD_CYCLE_TIME": "the engine has no cycle",
    "HOROVOD_DISABLE_GROUP_FUSION": "what is fused with a group changes no result",
    "HOROVOD_DISABLE_NVTX_RANGES": "there are no NVTX ranges",
    "HOROVOD_ENABLE_ASYNC_COMPLETION": "only elastic jobs wait on the host for a GPU, and they always do",
    "HOROVOD_ENABLE_XLA_OPS": "XLA does not compile the collectives of TensorFlow",
    "HOROVOD_GLOO_IFACE": "--network-interfaces chooses interfaces",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "losses are detected in another way",
    "HOROVOD_HIERARCHICAL_ALLGATHER": _ALGORITHM,
    "HOROVOD_HIERARCHICAL_ALLREDUCE": _ALGORITHM,
    "HOROVOD_LOG_HIDE_TIME": "log lines have no time",
    "HOROVOD_MPI_THREADS_DISABLE": "MPI is always used from a thread of its own",
    "HOROVOD_NUM_NCCL_STREAMS": "each GPU has one stream for collectives",
    "HOROVOD_TORUS_ALLREDUCE": _ALGORITHM,
    # Variables that Horovod reads when it is built.
    "HOROVOD_ALLOW_MIXED_GPU_IMPL": _NO_BUILD,
    "HOROVOD_BUILD_CUDA_CC_LIST": "farandole has no kernels of its own",
    "HOROVOD_CUDA_HOME": _NO_BUILD,
    "HOROVOD_GPU": _OPERATION,
    "HOROVOD_GPU_ALLGATHER": _OPERATION,
    "HOROVOD_GPU_ALLREDUCE": _OPERATION,
    "HOROVOD_GPU_ALLTOALL": _OPERATION,
    "HOROVOD_GPU_BROADCAST": _OPERATION,
    "HOROVOD_GPU_OPERATIONS": _OPERATION,
    "HOROVOD_GPU_REDUCESCATTER": _OPERATION,
    "HOROVOD_NCCL_HOME": _LIBRARY,
    "HOROVOD_NCCL_INCLUDE": _LIBRARY,
    "HOROVOD_NCCL_LIB": _LIBRARY,
    "HOROVOD_NCCL_LINK": _LIBRARY,
}


def without_effect(variables: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the variables that are set and have no effect, by reason."""
    found: dict[str, list[str]] = {}
    for name, why in UNUSED.items():
        if variables.get(name):
            found.setdefault(why, []).append(name)
    return found
