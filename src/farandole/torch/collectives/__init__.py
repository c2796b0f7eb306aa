"""The collectives on tensors.

Collectives, their forms and their gradients are declared in `worker.collectives`. This package adds PyTorch's part: its
tensors (`tensors`), its graph of gradients (`autograd`), the functions that are rendered from both (`functions`),
sparse tensors, PowerSGD, and calls for the optimizer (`calls`).
"""

from farandole.torch.collectives import functions as _functions
from farandole.torch.collectives.calls import allreduce_call, compressed_call, native_dtype
from farandole.torch.collectives.functions import *  # noqa: F403 - All declared collectives.
from farandole.torch.collectives.sparse import sparse_allreduce_async
from farandole.torch.collectives.tensors import DTYPES
from farandole.torch.no_compile import no_compile
from farandole.worker.collectives.barrier import barrier as _barrier
from farandole.worker.collectives.barrier import join
from farandole.worker.collectives.forms import poll, synchronize

barrier = no_compile(_barrier)

__all__ = [
    "DTYPES",
    "allreduce_call",
    "barrier",
    "compressed_call",
    "join",
    "native_dtype",
    "poll",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += _functions.__all__
