"""Collectives on any picklable Python object. They are the same functions in every front end.

Pickles are loaded only from other workers of the job, each of which has proven that it has the job's secret.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, TypeVar, overload

import cloudpickle  # type: ignore[import-untyped]

from farandole.base import portable
from farandole.worker.collectives.allgather import ALLGATHER
from farandole.worker.collectives.broadcast import BROADCAST
from farandole.worker.collectives.declaration import Form
from farandole.worker.collectives.forms import Forms
from farandole.worker.collectives.plain_memory import Block, PlainMemory
from farandole.worker.core.basics import current
from farandole.worker.core.dtype import DType
from farandole.worker.core.group import ProcessSet, global_process_set

T = TypeVar("T")

_forms = Forms(PlainMemory())
_broadcast = _forms.runner(BROADCAST, Form(in_place=True))


@overload
def broadcast_object(
    obj: None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any: ...


# Scripts pass None on other ranks: `broadcast_object(x if hvd.rank() == 0 else None)` returns an x everywhere.
@overload
def broadcast_object(
    obj: T | None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> T: ...


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on every rank. A newcomer to a job that already trains returns its own object until it
    also trains.

    Args:
        obj: an object that cloudpickle can pickle; ignored except on the root.
        root_rank: the rank, in the world, whose object is sent.
        name: the name of the call, the same on all ranks.
        process_set: the ranks that take part.

    Example:
        >>> step = hvd.broadcast_object(step if hvd.rank() == 0 else None)
    """
    if current().only_arrived:
        return obj
    name = "broadcast_object" if name is None else name
    is_root = current().world.rank == root_rank
    payload = bytearray(portable.dumps(obj)) if is_root else bytearray()
    size = Block(DType.I64, (), bytearray(len(payload).to_bytes(8, "little")))
    _broadcast(size, f"{name}.sz", process_set, {"root": root_rank})
    if not is_root:
        payload = bytearray(int.from_bytes(size.data, "little"))
    _broadcast(Block.of_bytes(payload), f"{name}.t", process_set, {"root": root_rank})
    return obj if is_root else cloudpickle.loads(payload)


def allgather_object(obj: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[T]:
    """Return every rank's object, in rank order.

    Args:
        obj: an object that cloudpickle can pickle.
        name: the name of the call, the same on all ranks.
        process_set: the ranks that take part.
    """
    name = "allgather_object" if name is None else name
    payload = Block.of_bytes(bytearray(portable.dumps(obj)))
    everything, sizes = _forms.received(ALLGATHER, payload, f"{name}.t", process_set, {})
    # Views, because a copy of a large object would cost as much as sending it.
    view = memoryview(everything.data)
    return [cloudpickle.loads(view[end - size : end]) for end, size in zip(accumulate(sizes), sizes, strict=True)]
