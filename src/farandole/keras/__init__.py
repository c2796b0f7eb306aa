"""farandole for Keras on TensorFlow, PyTorch or JAX, with Horovod's names.

Example:
    >>> import farandole.keras as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
    >>> model.compile(optimizer=optimizer, loss="mse")
    >>> history = model.fit(x, y, callbacks=[hvd.callbacks.Distributed()])
"""

import importlib.util
from typing import TYPE_CHECKING, Any

from farandole.base import tensorflow1
from farandole.base.tensorflow1 import hook

if importlib.util.find_spec("keras") is None:
    raise ModuleNotFoundError(
        "farandole.keras needs Keras, which is not installed here. Run: pip install 'farandole[keras]'", name="keras"
    )

if tensorflow1.is_asked_for():
    hook.install()

from farandole.errors import HorovodInternalError, read_errors_by
from farandole.keras import backends, callbacks, elastic
from farandole.keras import functions as _functions
from farandole.keras.collectives import translate
from farandole.keras.functions import *  # noqa: F403 - Each collective that is declared.
from farandole.keras.loading import load_model
from farandole.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from farandole.keras.sharding import shard
from farandole.keras.variables import broadcast_global_variables, broadcast_variables
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
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather_object",
    "barrier",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shard",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
    "sycl_built",
]
__all__ += _functions.__all__

# A worker whose program ends by such an error is not the one that failed first.
read_errors_by(translate)


if TYPE_CHECKING:
    Compression: Any
    """The compressions for tensors of the backend, such as `Compression.fp16`."""


def __getattr__(name: str) -> Any:
    if name == "Compression":
        # Each backend compresses its own tensors.
        return backends.chosen().compression
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
