"""`horovod.tensorflow.mpi_ops`: the ops and the basics of `farandole.tensorflow`, where scripts import them from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import farandole.tensorflow as hvd
from farandole.compat.basics import HorovodBasics
from farandole.compat.support import get_average_backwards_compatibility_fun, num_rank_is_power_2
from farandole.compat.tensorflow.util import _executing_eagerly
from farandole.worker.core.dtype import Sum
from farandole.worker.core.group import ProcessSet, global_process_set

__all__ = ["_executing_eagerly", "check_num_rank_power_of_2", "handle_average_backwards_compatibility"]

_basics = HorovodBasics()

check_num_rank_power_of_2 = num_rank_is_power_2
handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(hvd)


def _normalize_name(name: str) -> str:
    """Return a name in which TensorFlow accepts each character.

    Example:
        >>> _normalize_name("dense/kernel:0")
        'dense_kernel_0'
    """
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce a dense tensor; by default, sum it."""
    return hvd.allreduce(
        tensor,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduce dense tensors, which travel together; by default, sum them."""
    return hvd.grouped_allreduce(
        tensors,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
        name=name,
    )


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce a dense tensor, and return this rank's rows; by default, sum it."""
    return hvd.reducescatter(
        tensor,
        op=op,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce dense tensors, which travel together, and return this rank's rows; by default, sum them."""
    return hvd.grouped_reducescatter(
        tensors,
        op=op,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def __getattr__(name: str) -> Any:
    if name in hvd.__all__:
        return getattr(hvd, name)
    raise AttributeError(f"module 'horovod.tensorflow.mpi_ops' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *hvd.__all__})
