"""farandole for NumPy: collectives on arrays, without a framework, with Horovod's names.

Example:
    >>> import numpy as np
    >>> import farandole.numpy as hvd
    >>> hvd.init()
    >>> hvd.allreduce(np.arange(3.0), op=hvd.Sum)  # of one worker
    array([0., 1., 2.])
"""

import importlib.util

if importlib.util.find_spec("numpy") is None:
    raise ModuleNotFoundError(
        "farandole.numpy needs NumPy, which is not installed here. Run: pip install 'farandole[numpy]'", name="numpy"
    )

from farandole.errors import HorovodInternalError
from farandole.numpy import functions as _functions
from farandole.numpy.compression import Compression
from farandole.numpy.functions import *  # noqa: F403 - Each collective that is declared.
from farandole.worker.collectives.barrier import barrier, join
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
    sycl_built,
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
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
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
    "poll",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
    "sycl_built",
    "synchronize",
]
__all__ += _functions.__all__
