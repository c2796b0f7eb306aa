"""The collectives on tensors.

What a collective is, its forms and its gradient are declared in `worker.collectives`. Here is what PyTorch adds: its
tensors (`tensors`), its graph of gradients (`autograd`), the functions that are rendered from the two (`functions`),
sparse tensors, PowerSGD, and calls for the optimizer (`calls`).
"""

from farandole.torch.collectives.calls import allreduce_call, compressed_call, native_dtype
from farandole.torch.collectives.functions import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from farandole.torch.collectives.sparse import sparse_allreduce_async
from farandole.torch.collectives.tensors import DTYPES
from farandole.torch.no_compile import no_compile
from farandole.worker.collectives.barrier import barrier as _barrier
from farandole.worker.collectives.barrier import join
from farandole.worker.collectives.forms import poll, synchronize

barrier = no_compile(_barrier)

__all__ = [
    "DTYPES",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "allreduce_call",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "compressed_call",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "native_dtype",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
