"""Checks of a call's arguments that need no other rank, made before TensorFlow creates its op."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from farandole.errors import InvalidRequestError
from farandole.worker.collectives.declaration import Collective, Options
from farandole.worker.collectives.reduction_op import refuse_average_of_truth
from farandole.worker.core.dtype import Average, Sum

REDUCIBLE = frozenset(
    {tf.half, tf.bfloat16, tf.float32, tf.float64, tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64, tf.bool}
)
# Kinds of tensors whose elements are not in one piece of memory.
_NOT_DENSE = {tf.RaggedTensor: "tensor.to_tensor()", tf.SparseTensor: "tf.sparse.to_dense(tensor), or tf.IndexedSlices"}
# Their elements are not plain memory.
_IMMOVABLE = (tf.string, tf.resource, tf.variant)


def movable(given: Any) -> Any:
    """Convert an argument of a collective that moves rows to a tensor.

    Raises:
        ValueError: tensors of its type cannot be sent.
    """
    for kind, instead in _NOT_DENSE.items():
        if isinstance(given, kind):
            raise InvalidRequestError(f"a tf.{kind.__name__} is not supported. Pass {instead}.")
    tensor = tf.convert_to_tensor(given)
    _check_movable(tensor.dtype)
    return tensor


def accepted(collective: Collective, given: Any, options: Options) -> Any:
    """Convert an argument of a collective to a tensor.

    Raises:
        ValueError: the argument is not valid.
    """
    collective.check_options(options)
    return reducible(given, options["op"]) if collective.reduces else movable(given)


def writable(given: Any) -> None:
    """Raise ValueError if an argument is not a variable, or is one whose values cannot be sent."""
    if not hasattr(given, "assign"):
        raise InvalidRequestError(
            f"broadcast_ takes a list of variables and writes over them, but got {type(given).__name__} in it. Use "
            "broadcast, which returns a new tensor."
        )
    _check_movable(tf.as_dtype(given.dtype))


def _check_movable(dtype: Any) -> None:
    if dtype.base_dtype in _IMMOVABLE:
        raise InvalidRequestError(
            f"Tensor type tf.{dtype.name} is not supported. Use broadcast_object or allgather_object for texts and "
            "other objects."
        )


def reducible(given: Any, op: int) -> Any:
    """Convert an argument of a reduction to a tensor.

    Raises:
        ValueError: tensors of its type cannot be reduced by this operation.
    """
    tensor = movable(given)
    if tensor.dtype not in REDUCIBLE:
        if tensor.dtype.is_complex:
            instead = "Pass tf.math.real(tensor) and tf.math.imag(tensor)."
        else:
            instead = f"Cast it to one of {', '.join(sorted(dtype.name for dtype in REDUCIBLE))}."
        raise InvalidRequestError(
            f"Tensor type tf.{tensor.dtype.name} is not supported in a reduction, which calculates with the elements. "
            f"{instead}"
        )
    if op == Average and tensor.dtype == tf.bool:
        refuse_average_of_truth("tf.bool")
    return tensor


def slices(given: Any, op: int, *, scaled: bool) -> Any:
    """Return `tf.IndexedSlices` that consist of tensors, for a reduction of `tf.IndexedSlices`.

    Args:
        given: the slices, whose values, indices and shape `tf.convert_to_tensor` can convert.
        op: the operation.
        scaled: whether the user passed factors.

    Raises:
        NotImplementedError: factors, or another operation than Average and Sum.
        ValueError: values of their type cannot be reduced.
    """
    if scaled:
        raise NotImplementedError(
            "Pre/postscale_factor are not supported with tf.IndexedSlices. Scale slices.values, or make the tensor "
            "dense by tf.convert_to_tensor."
        )
    if op not in (Average, Sum):
        raise NotImplementedError(
            "tf.IndexedSlices can be reduced by Average and Sum only. For the other operations, pass "
            "sparse_as_dense=True, or make the tensor dense by tf.convert_to_tensor."
        )
    shape = None if given.dense_shape is None else tf.convert_to_tensor(given.dense_shape)
    return tf.IndexedSlices(reducible(given.values, op), tf.convert_to_tensor(given.indices), shape)


def splits_of(given: Any) -> Any:
    """Return the number of rows for each rank, as a tensor of int32.

    Raises:
        ValueError: the argument cannot be converted to int32, or is not a vector.
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
