"""Collectives on Python objects, with the arguments that scripts for TensorFlow 1 pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farandole.collectives import objects
from farandole.core.group import ProcessSet, global_process_set


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object on every rank; see `farandole.collectives.objects`.

    Args:
        obj: anything that cloudpickle can pickle; ignored except on the root.
        root_rank: whose object; a rank in the world.
        session: accepted, without effect: objects travel without TensorFlow.
        name: the same on all ranks.
        process_set: which ranks take part.

    Example:
        >>> epoch = hvd.broadcast_object(epoch, root_rank=0)  # doctest: +SKIP
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that does what `broadcast_object` does with these arguments."""

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return every rank's object, in rank order.

    Args:
        obj: anything that cloudpickle can pickle.
        session: accepted, without effect.
        name: the same on all ranks.
        process_set: which ranks take part.
    """
    return objects.allgather_object(obj, name, process_set)
