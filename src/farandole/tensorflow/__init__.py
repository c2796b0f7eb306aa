"""farandole for TensorFlow, with Horovod's names.

Example:
    >>> import farandole.tensorflow as hvd
    >>> hvd.init()
    >>> average = hvd.allreduce(tensor)
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from farandole.base import tensorflow1
from farandole.base.tensorflow1 import hook

if importlib.util.find_spec("tensorflow") is None:
    raise ModuleNotFoundError(
        "farandole.tensorflow needs TensorFlow, which is not installed here. Run: pip install 'farandole[tensorflow]'",
        name="tensorflow",
    )

if tensorflow1.is_asked_for():
    hook.install()

from farandole.errors import HorovodInternalError, read_errors_by
from farandole.tensorflow import functions as _functions
from farandole.tensorflow.collectives import broadcast_
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.errors import translate
from farandole.tensorflow.functions import *  # noqa: F403 - Each collective that is declared.
from farandole.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from farandole.tensorflow.optimizer import DistributedOptimizer
from farandole.tensorflow.questions import (
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from farandole.tensorflow.sharding import shard
from farandole.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from farandole.tensorflow.variables import (
    BroadcastGlobalVariablesHook,
    broadcast_global_variables,
    broadcast_variables,
)
from farandole.worker.collectives.barrier import barrier
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
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather_object",
    "barrier",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
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
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "remove_process_set",
    "rocm_built",
    "shard",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stats",
    "stop_timeline",
    "sycl_built",
]
__all__ += _functions.__all__

# A worker whose program ends by such an error is not the one that failed first.
read_errors_by(translate)


if TYPE_CHECKING:
    from farandole.tensorflow import elastic as elastic
    from farandole.tensorflow.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization

# Loaded when they are first asked for: most jobs are not elastic, and Keras takes its time.
_LATER = {"elastic": "farandole.tensorflow.elastic", "SyncBatchNormalization": "farandole.tensorflow.sync_batch_norm"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        module = importlib.import_module(_LATER[name])
        return module if name == "elastic" else getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
