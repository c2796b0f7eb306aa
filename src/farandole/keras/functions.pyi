# Rendered from farandole.worker.collectives by `make fix` (tools/stubs.py). Do not edit.
from typing import Any

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "reduce",
    "reducescatter",
]

def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = None,
) -> Any:
    """Reduce a value over all ranks of a process set and return the result, the same on all of them.

    Args:
        value: a number, an array or a tensor; the result is a tensor. With Keras 2 in a session of TensorFlow 1, the
            result is an array or a number, unless the value is a tensor.
        name: ranks' calls match by name; unnamed calls match by their order.
        average: Horovod's older way to choose between Average and Sum.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.
        op: Average (the default), Sum, Adasum, Min, Max or Product. The average of integers is truncated toward zero.
            Of truth values, Sum and Max are "or", Product and Min are "and".
        compression: the compression of the value, such as `Compression.fp16`; None: it is sent as it is.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' values do not fit together, or a worker was lost.
    """

def allgather(
    value: Any,
    name: str | None = None,
) -> Any:
    """Concatenate the values of all ranks of a process set along the first dimension, in rank order.

    Ranks may differ in the first dimension only, which may be 0.

    Args:
        value: a number, an array or a tensor; the result is a tensor. With Keras 2 in a session of TensorFlow 1, the
            result is an array or a number, unless the value is a tensor.
        name: ranks' calls match by name; unnamed calls match by their order.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' values do not fit together, or a worker was lost.
    """

def broadcast(
    value: Any,
    root_rank: int,
    name: str | None = None,
) -> Any:
    """Return the root's value on every rank of a process set.

    Args:
        value: a number, an array or a tensor; the result is a tensor. With Keras 2 in a session of TensorFlow 1, the
            result is an array or a number, unless the value is a tensor.
        root_rank: the rank whose value is sent; a rank in the world, also for a process set.
        name: ranks' calls match by name; unnamed calls match by their order.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' values do not fit together, or a worker was lost.
    """

def reducescatter(
    value: Any,
    name: str | None = None,
    op: int = 0,
) -> Any:
    """Reduce a value over all ranks of a process set, and return this rank's rows of the result.

    The first dimension is divided among the ranks, in rank order; if it cannot be divided equally, the first ranks get
    one row more.

    Args:
        value: a number, an array or a tensor; the result is a tensor. With Keras 2 in a session of TensorFlow 1, the
            result is an array or a number, unless the value is a tensor.
        name: ranks' calls match by name; unnamed calls match by their order.
        op: Average (the default), Sum, Min, Max or Product.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' values do not fit together, or a worker was lost.
    """

def reduce(
    value: Any,
    root_rank: int,
    name: str | None = None,
    op: int = 0,
) -> Any:
    """Reduce a value over all ranks of a process set, and return the result on the root.

    Other ranks return their input.

    Args:
        value: a number, an array or a tensor; the result is a tensor. With Keras 2 in a session of TensorFlow 1, the
            result is an array or a number, unless the value is a tensor.
        root_rank: the rank that gets the result; a rank in the world, also for a process set.
        name: ranks' calls match by name; unnamed calls match by their order.
        op: Average (the default), Sum, Min, Max or Product.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' values do not fit together, or a worker was lost.
    """
