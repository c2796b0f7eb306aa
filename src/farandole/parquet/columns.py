"""Columns of Arrow as NumPy arrays, whose first dimension is the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from farandole.errors import InvalidRequestError
from farandole.parquet.footers import arrow


def to_numpy(column: Any, name: str) -> Any:
    """Return a column as an array.

    Numbers keep their type. Lists of equal length become further dimensions, as do Arrow's tensors. Texts and bytes are
    objects. A missing floating-point number is NaN.

    Args:
        column: an Arrow array of one chunk.
        name: the name of the column, for messages.

    Raises:
        InvalidRequestError: a value is missing, or lists have different lengths.
    """
    pyarrow = arrow()
    types = pyarrow.types
    if isinstance(column.type, pyarrow.FixedShapeTensorType):
        return column.to_numpy_ndarray()
    if isinstance(column, pyarrow.ExtensionArray):
        return to_numpy(column.storage, name)
    if types.is_dictionary(column.type):
        return to_numpy(column.dictionary_decode(), name)
    if column.null_count and not types.is_floating(column.type):
        raise InvalidRequestError(
            f"the column {name!r} has rows without a value (null), which an array of {column.type} cannot hold: "
            "fill them when the files are written, or leave the column out by columns=."
        )
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        return _of_lists(column, name)
    return column.to_numpy(zero_copy_only=False)


def _of_lists(column: Any, name: str) -> Any:
    values = to_numpy(column.flatten(), name)
    lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
    if len(lengths) > 1:
        raise InvalidRequestError(
            f"the rows of column {name!r} have lists of different lengths ({lengths[0]} to {lengths[-1]}): pad them "
            "when the files are written, or leave the column out by columns=."
        )
    return values.reshape(len(column), *lengths, *values.shape[1:])
