"""Collectives on any picklable Python object. They are the same functions in every front end.

Pickles are loaded only from other workers of the job, each of which has proven that it has the job's secret.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple, TypeVar, overload

import cloudpickle  # type: ignore[import-untyped]

from farandole.base import portable
from farandole.errors import InvalidRequestError
from farandole.worker.collectives.allgather import ALLGATHER
from farandole.worker.collectives.arguments import check_arguments
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

    Raises:
        ValueError: the root's object cannot be pickled. The root raises the error with which that failed.

    Example:
        >>> step = hvd.broadcast_object(step if hvd.rank() == 0 else None)
    """
    if current().only_arrived:
        return obj
    check_arguments("broadcast_object", {"root_rank": root_rank, "name": name, "process_set": process_set})
    name = "broadcast_object" if name is None else name
    is_root = current().world.rank == root_rank
    payload, error = _pickled(obj) if is_root else (bytearray(), None)
    size = Block(DType.I64, (), bytearray(len(payload).to_bytes(8, "little")))
    _broadcast(size, f"{name}.sz", process_set, {"root": root_rank})
    if not is_root:
        payload = bytearray(int.from_bytes(size.data, "little"))
    _broadcast(Block.of_bytes(payload), f"{name}.t", process_set, {"root": root_rank})
    if error is not None:
        raise error
    return obj if is_root else _loaded(payload, "broadcast_object", root_rank)


def allgather_object(obj: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[T]:
    """Return every rank's object, in rank order.

    Args:
        obj: an object that cloudpickle can pickle.
        name: the name of the call, the same on all ranks.
        process_set: the ranks that take part.

    Raises:
        ValueError: a rank's object cannot be pickled. That rank raises the error with which it failed.
    """
    check_arguments("allgather_object", {"name": name, "process_set": process_set})
    name = "allgather_object" if name is None else name
    payload, error = _pickled(obj)
    everything, sizes = _forms.received(ALLGATHER, Block.of_bytes(payload), f"{name}.t", process_set, {})
    if error is not None:
        raise error
    # Views, because a copy of a large object would cost as much as sending it.
    view = memoryview(everything.data)
    ends = zip(process_set.ranks, accumulate(sizes), sizes, strict=True)
    return [_loaded(view[end - size : end], "allgather_object", rank) for rank, end, size in ends]


class _NotPickled(NamedTuple):
    """Travels instead of an object that cannot be pickled, so that the other ranks do not wait for it."""

    reason: str


def _pickled(obj: Any) -> tuple[bytearray, Exception | None]:
    """Return the pickle of an object, or of a `_NotPickled` and the error."""
    try:
        return bytearray(portable.dumps(obj)), None
    except Exception as error:
        return bytearray(portable.dumps(_NotPickled(f"{type(error).__name__}: {error}"))), error


def _loaded(payload: bytearray | memoryview, function: str, rank: int) -> Any:
    obj = cloudpickle.loads(payload)
    if isinstance(obj, _NotPickled):
        raise InvalidRequestError(
            f"{function}: the object of rank {rank} cannot be pickled: {obj.reason}. Pass an object that cloudpickle "
            "can pickle."
        )
    return obj
