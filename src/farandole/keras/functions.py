"""Collectives on values: Python's numbers, NumPy's arrays, tensors of the backend that Keras uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farandole.errors import FarandoleError
from farandole.keras import backends, sessions
from farandole.worker.collectives.compression import NoneCompressor
from farandole.worker.collectives.reduction_op import op_asked_for
from farandole.worker.core.dtype import Average


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = None,
) -> Any:
    """Reduce a value over all ranks, and return the result as a tensor, the same on all of them.

    With Keras 2 in a session of TensorFlow 1, the result is an array or a number, unless the value is a tensor.

    Args:
        value: a number, an array or a tensor.
        name: ranks' calls match by name; without one, by their order.
        average: Horovod's older way to choose between Average and Sum.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.
        op: Average (the default), Sum, Adasum, Min, Max or Product.
        compression: how the value travels, such as `Compression.fp16`; None: as it is.

    Raises:
        ValueError: both `average` and `op` were given.
    """
    op = op_asked_for(op, average, stacklevel=2)
    compression = NoneCompressor if compression is None else compression
    reduce = backends.chosen().allreduce
    return _with_value(value, lambda given: reduce(given, name, op, prescale_factor, postscale_factor, compression))


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenate the values of all ranks along the first dimension, in rank order. See `allreduce`."""
    return _with_value(value, lambda given: backends.chosen().allgather(given, name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the root's value on every rank. See `allreduce`."""
    return _with_value(value, lambda given: backends.chosen().broadcast(given, root_rank, name))


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Reduce a value over all ranks, and return this rank's share of the rows. See `allreduce`."""
    return _with_value(value, lambda given: backends.chosen().reducescatter(given, name, op))


def _with_value(value: Any, collective: Callable[[Any], Any]) -> Any:
    """Return what a collective makes of a value: in a session of Keras 2, a number or an array, too, and no op."""
    if not sessions.is_on() or sessions.is_in_graph(value):
        return collective(value)
    return sessions.evaluated(lambda: collective(value))


def translate(error: BaseException) -> FarandoleError | None:
    """Return farandole's error for one of the backend's; None if it did not come from a collective.

    Example:
        >>> translate(ValueError("something else")) is None
        True
    """
    ours: FarandoleError | None = backends.chosen().translate(error)
    return ours
