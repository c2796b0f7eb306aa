"""`horovod.tensorflow.mpi_ops`: the ops and the basics of `farandole.tensorflow`, where scripts import them from."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import farandole.tensorflow as hvd
from farandole.compat.basics import HorovodBasics
from farandole.compat.support import get_average_backwards_compatibility_fun, num_rank_is_power_2
from farandole.compat.tensorflow.util import _executing_eagerly
from farandole.worker.collectives.all_collectives import COLLECTIVES
from farandole.worker.collectives.declaration import PLAIN, Form
from farandole.worker.core.dtype import Sum

__all__ = ["_executing_eagerly", "check_num_rank_power_of_2", "handle_average_backwards_compatibility"]

_basics = HorovodBasics()

check_num_rank_power_of_2 = num_rank_is_power_2
handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(hvd)


def _normalize_name(name: str) -> str:
    """Return a name with only characters that TensorFlow accepts.

    Example:
        >>> _normalize_name("dense/kernel:0")
        'dense_kernel_0'
    """
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _summing(function: Callable[..., Any], order: list[str]) -> Callable[..., Any]:
    """Return a reduction with the signature of Horovod's op: a sum by default, and its order of arguments."""

    def reduce(tensors: Any, *values: Any, **named: Any) -> Any:
        return function(tensors, **{"op": Sum, **dict(zip(order[: len(values)], values, strict=True)), **named})

    return reduce


SUMS = {
    f"_{name}": _summing(getattr(hvd, name), order.plain.split())
    for collective in COLLECTIVES.values()
    if (order := collective.horovod.get("tensorflow.mpi_ops")) is not None
    for name in (PLAIN.function(collective.name), Form(grouped=True).function(collective.name))
}
"""The ops of reductions, by their names: `_allreduce`, for instance."""
globals().update(SUMS)


def __getattr__(name: str) -> Any:
    if name in hvd.__all__:
        return getattr(hvd, name)
    raise AttributeError(f"module 'horovod.tensorflow.mpi_ops' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *hvd.__all__})
