"""farandole for PyTorch, with Horovod's names.

Example:
    >>> import farandole.torch as hvd
    >>> hvd.init()
    >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("torch") is None:
    raise ModuleNotFoundError(
        "farandole.torch needs PyTorch, which is not installed here. Run: pip install 'farandole[torch]'", name="torch"
    )

from farandole.errors import HorovodInternalError
from farandole.torch import portable as _portable  # noqa: F401  (registers how tensors are sent)
from farandole.torch.collectives import barrier, join, poll, sparse_allreduce_async, synchronize
from farandole.torch.collectives import functions as _functions
from farandole.torch.collectives.functions import *  # noqa: F403 - All declared collectives.
from farandole.torch.compression import Compression
from farandole.torch.local_device import local_device
from farandole.torch.objects import allgather_object, broadcast_object
from farandole.torch.optimizer_state import broadcast_optimizer_state
from farandole.torch.parameters import broadcast_parameters
from farandole.torch.reduces_gradients import ReducesGradients
from farandole.torch.sync_batch_norm import SyncBatchNorm, convert_sync_batchnorm
from farandole.torch.wrapped_optimizers import DistributedOptimizer
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
    "ProcessSet",
    "Product",
    "ReducesGradients",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "convert_sync_batchnorm",
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
    "local_device",
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
    "sparse_allreduce_async",
    "start_timeline",
    "stats",
    "stop_timeline",
    "sycl_built",
    "synchronize",
]
__all__ += _functions.__all__

if TYPE_CHECKING:
    from farandole.torch import elastic as elastic


def __getattr__(name: str) -> Any:
    if name == "elastic":
        # Loaded on first use, because most jobs are not elastic.
        return importlib.import_module("farandole.torch.elastic")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
