"""Sending arrays from ranks that have them to ranks that lack them, directly from memory to memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from farandole.worker.core.basics import current
from farandole.worker.elastic.pieces import give, pieces_of


def transfer_arrays(
    arrays: Callable[[], dict[str, Any]],
    others: Callable[[], dict[str, Any]],
    sources: Sequence[int],
    receivers: Sequence[int],
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Send the receivers arrays, by name, and objects; return them there, and None on other ranks. A collective."""
    session = current()
    rank = session.world.rank
    held: dict[str, Any] = {}
    told = b""
    if rank in sources:
        own = arrays()
        held = {name: np.ascontiguousarray(each).reshape(each.shape) for name, each in own.items() if _has_values(each)}
        if rank == sources[0]:
            layout = [
                (name, each.dtype, each.shape, None if name in held else each.tolist()) for name, each in own.items()
            ]
            told = cloudpickle.dumps((layout, others()))
    layout, states = cloudpickle.loads(session.exchange("elastic.skeleton", told)[sources[0]])
    came: dict[str, Any] = {}
    if rank in receivers:
        came = {name: np.empty(shape, dtype) for name, dtype, shape, _ in layout}
        held = {name: each for name, each in came.items() if _has_values(each)}
    give(session, pieces_of((array.ctypes.data, array.nbytes) for array in held.values()), sources, receivers)
    if rank not in receivers:
        return None
    for name, _, _, objects in layout:
        if objects is not None:
            came[name][...] = objects
    return came, states


def _has_values(array: Any) -> bool:
    """Return whether the elements are in the array's memory; TensorFlow's text, for example, is objects in other
    memory.
    """
    return not array.dtype.hasobject
