"""The division of rows among ranks: each rank's own rows of a result, and the rows that it sends to the others."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from farandole.errors import InvalidRequestError


class Int32Only(NamedTuple):
    """The tensors for the number of rows for each rank, which must be 32-bit integers, as in Horovod."""

    kind: type[Any]
    """The class of the tensors."""
    dtype: Any
    """The front end's name of int32."""
    cast: str
    """The expression with which a user converts `splits` to such a tensor."""


def own_rows(rows: int, size: int, position: int) -> int:
    """Return how many of `rows` rows a rank gets. If they cannot be divided equally, the first ranks get one more.

    Example:
        >>> [own_rows(5, 3, position) for position in range(3)]
        [2, 2, 1]
    """
    return rows // size + (position < rows % size)


def rows_to_send(splits: Any, rows: int, size: int, int32_only: Int32Only | None = None) -> list[int]:
    """Return the number of rows, of a tensor with `rows`, that are sent to each of `size` ranks.

    Args:
        splits: the number of rows for each rank: a tensor, or any iterable of integers. None: the same number to each.
        rows: the number of rows of the tensor.
        size: the number of ranks that take part.
        int32_only: the tensors that must be 1-D and of int32, if there are any.

    Raises:
        ValueError: the splits do not match the tensor or the number of ranks.

    Example:
        >>> rows_to_send(None, 6, 3)
        [2, 2, 2]
        >>> rows_to_send([0, 5, 1], 6, 3)
        [0, 5, 1]
    """
    if splits is None:
        if rows % size:
            raise InvalidRequestError(
                f"splits not provided, but first dimension of tensor ({rows}) is not an even multiple of the number of "
                f"workers ({size}). Pass splits: the number of rows for each worker."
            )
        return [rows // size] * size
    numbers = _numbers(splits, int32_only)
    if len(numbers) != size:
        raise InvalidRequestError(
            f"Number of entries in splits does not equal number of workers: {len(numbers)} entries, {size} workers."
        )
    if min(numbers) < 0:
        raise InvalidRequestError(f"splits cannot be negative, but are {numbers}.")
    if sum(numbers) > rows:
        raise InvalidRequestError(
            "Sum of splits entries is greater than the first dimension of tensor: "
            f"{numbers} make {sum(numbers)} rows, the tensor has {rows}."
        )
    return numbers


def _numbers(splits: Any, int32_only: Int32Only | None) -> list[int]:
    if int32_only is not None and isinstance(splits, int32_only.kind):
        shape, dtype = splits.shape, splits.dtype
        if len(shape) != 1:
            raise InvalidRequestError(f"alltoall expects a 1D splits tensor, but this one has shape {list(shape)}.")
        if dtype != int32_only.dtype:
            raise InvalidRequestError(
                "alltoall expects splits to contain 32-bit integer elements, "
                f"but these are {dtype}. Pass {int32_only.cast}, or a list."
            )
        splits = splits.tolist()
    try:
        return [operator.index(split) for split in splits]
    except TypeError:
        raise InvalidRequestError(
            f"alltoall expects a 1D splits tensor with 32-bit integer elements, or a list of whole numbers, "
            f"but got {splits!r}."
        ) from None
