"""Arrays from ranks that have them to ranks that lack them, straight from memory to memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from farandole.core.basics import current
from farandole.elastic.pieces import give, pieces_of


def transfer_arrays(
    arrays: Callable[[], dict[str, Any]],
    others: Callable[[], dict[str, Any]],
    sources: Sequence[int],
    receivers: Sequence[int],
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Give the receivers arrays, by name, and objects; return them there, and None on other ranks. A collective."""
    session = current()
    rank = session.world.rank
    held: dict[str, Any] = {}
    told = b""
    if rank in sources:
        held = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays().items()}
        if rank == sources[0]:
            told = cloudpickle.dumps(([(name, each.dtype, each.shape) for name, each in held.items()], others()))
    skeleton, states = cloudpickle.loads(session.exchange("elastic.skeleton", told)[sources[0]])
    if rank in receivers:
        held = {name: np.empty(shape, dtype) for name, dtype, shape in skeleton}
    give(session, pieces_of((array.ctypes.data, array.nbytes) for array in held.values()), sources, receivers)
    return (held, states) if rank in receivers else None
