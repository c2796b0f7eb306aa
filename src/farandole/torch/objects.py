"""Collectives on any Python object that can be pickled.

Pickles are only loaded from the other workers of the job, each of which has proven the job's secret.
"""

from __future__ import annotations

import ctypes
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch

from farandole.core.basics import current
from farandole.core.group import ProcessSet, global_process_set
from farandole.torch import collectives


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on every rank; in a job that trains already, a newcomer keeps its own until it does.

    Args:
        obj: anything that cloudpickle can pickle; ignored except on the root.
        root_rank: whose object; a rank in the world.
        name: the same on all ranks.
        process_set: which ranks take part.

    Example:
        >>> step = hvd.broadcast_object(step if hvd.rank() == 0 else None)  # doctest: +SKIP
    """
    if current().only_arrived:
        return obj
    name = "broadcast_object" if name is None else name
    is_root = current().world.rank == root_rank
    payload = _pickled(obj) if is_root else torch.empty(0, dtype=torch.uint8, device="cpu")
    size = collectives.broadcast_(torch.tensor(payload.numel(), device="cpu"), root_rank, f"{name}.sz", process_set)
    if not is_root:
        payload = torch.empty(int(size), dtype=torch.uint8, device="cpu")
    collectives.broadcast_(payload, root_rank, f"{name}.t", process_set)
    return obj if is_root else _unpickled(payload)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return every rank's object, in rank order.

    Args:
        obj: anything that cloudpickle can pickle.
        name: the same on all ranks.
        process_set: which ranks take part.
    """
    name = "allgather_object" if name is None else name
    everything, sizes = collectives.gather(_pickled(obj), f"{name}.t", process_set)
    return [_unpickled(payload) for payload in everything.split(sizes)]


def _pickled(obj: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(cloudpickle.dumps(obj)), dtype=torch.uint8)


def _unpickled(payload: torch.Tensor) -> Any:
    # Straight from the tensor's memory: a copy of a large object would cost as much as sending it.
    buffer = (ctypes.c_char * payload.numel()).from_address(payload.data_ptr())
    return cloudpickle.loads(buffer)
