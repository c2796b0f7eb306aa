"""Collectives on Python objects, with the arguments that scripts for TensorFlow 1 pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from farandole.worker.collectives import objects
from farandole.worker.core.group import ProcessSet, global_process_set

T = TypeVar("T")


@overload
def broadcast_object(
    obj: None,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any: ...


# Scripts pass None on ranks that have nothing: `broadcast_object(x if hvd.rank() == 0 else None)` is an x everywhere.
@overload
def broadcast_object(
    obj: T | None,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> T: ...


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object on every rank; see `farandole.worker.collectives.objects`.

    Args:
        obj: an object that cloudpickle can pickle; ignored except on the root.
        root_rank: the rank, in the world, whose object is sent.
        session: ignored: objects are sent without TensorFlow.
        name: the name of the call, the same on all ranks.
        process_set: the ranks that take part.

    Example:
        >>> hvd.broadcast_object({"epoch": 3}, root_rank=0)
        {'epoch': 3}
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function from an object to the result of `broadcast_object` with these arguments."""

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


def allgather_object(
    obj: T, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[T]:
    """Return every rank's object, in rank order.

    Args:
        obj: an object that cloudpickle can pickle.
        session: ignored.
        name: the name of the call, the same on all ranks.
        process_set: the ranks that take part.
    """
    return objects.allgather_object(obj, name, process_set)
