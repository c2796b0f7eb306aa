"""What is wrong with a call whatever the other ranks do, said before TensorFlow makes an op of it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from farandole.collectives.reducescatter import check_operation
from farandole.collectives.reduction_op import refuse_average_of_truth
from farandole.core.dtype import Average
from farandole.errors import InvalidRequestError

REDUCIBLE = frozenset(
    {tf.half, tf.bfloat16, tf.float32, tf.float64, tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64, tf.bool}
)
MOVABLE = REDUCIBLE | {tf.uint16}


def movable(given: Any) -> Any:
    """Return the tensor that stands for an argument of a collective that moves rows.

    Raises:
        ValueError: tensors of its type cannot be sent.
    """
    return _checked(given, MOVABLE)


def reducible(given: Any, op: int) -> Any:
    """Return the tensor that stands for an argument of a reduction.

    Raises:
        ValueError: tensors of its type cannot be reduced, or not by this operation.
    """
    tensor = _checked(given, REDUCIBLE)
    if op == Average and tensor.dtype == tf.bool:
        refuse_average_of_truth("tf.bool")
    return tensor


def scatterable(given: Any, op: int) -> Any:
    """Return the tensor that stands for an argument of a reducescatter. See `reducible`."""
    check_operation(op)
    return reducible(given, op)


def splits_of(given: Any) -> Any:
    """Return how many rows go to each rank, as a tensor of int32.

    Raises:
        ValueError: these are no such numbers.
    """
    try:
        splits = tf.convert_to_tensor(given, dtype=tf.int32)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(
            f"alltoall expects splits with 32-bit integer elements, such as a list of int, not {given!r}."
        ) from error
    if splits.shape.rank not in (1, None):
        raise InvalidRequestError(f"alltoall expects a 1D splits tensor, not one of shape {splits.shape}.")
    return splits


def _checked(given: Any, dtypes: frozenset[Any]) -> Any:
    tensor = tf.convert_to_tensor(given)
    if tensor.dtype in dtypes:
        return tensor
    if tensor.dtype.is_complex:
        instead = "Pass tf.math.real(tensor) and tf.math.imag(tensor)."
    elif tensor.dtype == tf.string:
        instead = "Use broadcast_object or allgather_object for texts."
    else:
        instead = f"Cast it to one of {', '.join(sorted(dtype.name for dtype in dtypes))}."
    raise InvalidRequestError(f"Tensor type tf.{tensor.dtype.name} is not supported. {instead}")
