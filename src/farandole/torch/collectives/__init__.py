"""The collectives on tensors: plain, in place, grouped, and each of them asynchronous. One file each.

A file has, from above to below: how one tensor becomes a member of a call (see `call`), the public functions, and what
autograd does. The plain functions are differentiable; the gradient of a collective is a collective again, which runs in
the backward pass on every rank.
"""

from farandole.torch.collectives.allgather import (
    allgather,
    allgather_async,
    gather,
    grouped_allgather,
    grouped_allgather_async,
)
from farandole.torch.collectives.allreduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from farandole.torch.collectives.alltoall import alltoall, alltoall_async
from farandole.torch.collectives.barrier import barrier, join
from farandole.torch.collectives.broadcast import broadcast, broadcast_, broadcast_async, broadcast_async_
from farandole.torch.collectives.call import DTYPES, native_dtype, poll, synchronize
from farandole.torch.collectives.compressed import compressed_call
from farandole.torch.collectives.reducescatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from farandole.torch.collectives.reduction import allreduce_call
from farandole.torch.collectives.sparse import sparse_allreduce_async

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
    "gather",
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
