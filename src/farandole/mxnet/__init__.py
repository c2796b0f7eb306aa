"""farandole for MXNet 1.9.1, with Horovod's names.

Example:
    >>> import farandole.mxnet as hvd  # doctest: +SKIP
    >>> hvd.init()  # doctest: +SKIP
    >>> average = hvd.allreduce(array)  # doctest: +SKIP
"""

try:
    import mxnet  # noqa: F401
except Exception as error:  # Such as AttributeError: newer versions of NumPy lack names that MXNet asks for.
    raise ModuleNotFoundError(
        "farandole.mxnet needs MXNet 1.9.1, the last one, with NumPy 1.23.5, in a separate environment with Python "
        f"3.10 or 3.11; there, run: pip install 'farandole[mxnet]' (importing mxnet here: {error})",
        name="mxnet",
    ) from error

from farandole.errors import HorovodInternalError, read_errors_by
from farandole.mxnet import functions as _functions
from farandole.mxnet.compression import Compression
from farandole.mxnet.errors import translate
from farandole.mxnet.functions import *  # noqa: F403 - Each collective that is declared.
from farandole.mxnet.optimizer import DistributedOptimizer
from farandole.mxnet.parameters import broadcast_parameters
from farandole.mxnet.trainer import DistributedTrainer
from farandole.worker.collectives.barrier import barrier
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
    "DistributedOptimizer",
    "DistributedTrainer",
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
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
]
__all__ += _functions.__all__

# A worker whose program ends by such an error is not the one that failed first.
read_errors_by(translate)
