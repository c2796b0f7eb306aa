"""Pickles of objects for other workers, and for the program that has started them.

A framework pickles a tensor of a GPU with the number of that GPU. On the receiver, this may be another worker's GPU, or
there may be none. So front ends with such tensors register how to pickle them.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

# What `object.__reduce__` returns.
Reduced = tuple[Any, ...]
_reducers: dict[type, Callable[[Any], Reduced | None]] = {}


def register(kind: type, reduce: Callable[[Any], Reduced | None]) -> None:
    """Pickle instances of a type by a function, which returns None for those that are pickled as usual."""
    _reducers[kind] = reduce


def dumps(value: Any) -> bytes:
    """Return a pickle that any process of the job can load, with `pickle.loads`."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def dump_result(value: Any) -> bytes:
    """Return the result of a user's function, pickled as (True, value).

    Raises:
        TypeError: it cannot be pickled.
    """
    try:
        return dumps((True, value))
    except Exception as error:  # Objects raise whatever they like.
        raise TypeError(
            f"the result of the function, a {type(value).__name__}, cannot be sent to the program that has started the "
            f"job: {error}. Return what it is made of, such as numbers and arrays, or save it to a file."
        ) from error


def dump_exception(error: BaseException, otherwise: object = None) -> bytes:
    """Return the exception of a user's function, pickled as (False, error).

    Args:
        error: the exception.
        otherwise: the object to be pickled instead, if the exception cannot be.
    """
    try:
        return dumps((False, error))
    except Exception:  # Its attributes may raise anything.
        return dumps((False, otherwise))


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        """Return how a value is pickled."""
        for kind, reduce in _reducers.items():
            if isinstance(value, kind) and (reduced := reduce(value)) is not None:
                return reduced
        return super().reducer_override(value)
