"""farandole for JAX: collectives on arrays, eager and in functions that JAX compiles.

Example:
    >>> import farandole.jax as hvd
    >>> hvd.init()
    >>> average = jax.jit(lambda x: hvd.allreduce(x))(x)
"""

import importlib.util

if importlib.util.find_spec("jax") is None:
    raise ModuleNotFoundError(
        "farandole.jax needs JAX, which is not installed here. Run: pip install 'farandole[jax]'", name="jax"
    )

from farandole.errors import HorovodInternalError, read_errors_by
from farandole.jax import elastic, orbax
from farandole.jax import functions as _functions
from farandole.jax.barrier import barrier
from farandole.jax.compression import Compression
from farandole.jax.errors import translate, translated
from farandole.jax.functions import *  # noqa: F403 - Each collective that is declared.
from farandole.jax.training import broadcast_parameters, distributed, distributed_grad, distributed_value_and_grad
from farandole.worker.collectives.barrier import join
from farandole.worker.collectives.forms import poll, synchronize
from farandole.worker.collectives.objects import allgather_object, broadcast_object
from farandole.worker.core.basics import (
    add_process_set,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
    stats,
)
from farandole.worker.core.built import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    mpi_built,
    nccl_built,
    rocm_built,
)
from farandole.worker.core.carrier import gloo_enabled, mpi_enabled, mpi_threads_supported
from farandole.worker.core.dtype import Adasum, Average, Max, Min, Product, Sum
from farandole.worker.core.group import ProcessSet, global_process_set
from farandole.worker.observe.observer import start_timeline, stop_timeline

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "distributed",
    "distributed_grad",
    "distributed_value_and_grad",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "orbax",
    "poll",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
    "synchronize",
    "translate",
    "translated",
]
__all__ += _functions.__all__

# A worker whose program ends by such an error is not the one that failed first.
read_errors_by(translate)
