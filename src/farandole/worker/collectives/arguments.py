"""Errors that describe arguments of a wrong type.

A call does not check the types of its arguments, because the checks take time and nearly all calls are right. A wrong
one fails somewhere with an error of Python, `CONFUSED`; only then are its arguments checked.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping, Sequence, Set
from reprlib import repr
from typing import Any

from farandole.errors import InvalidRequestError
from farandole.worker.collectives.compression import is_compression
from farandole.worker.core.group import check_process_set

CONFUSED = (TypeError, AttributeError, struct.error)
"""The errors with which a call fails if an argument has a wrong type."""


def check_arguments(function: str, arguments: Mapping[str, Any]) -> None:
    """Check the types of a call's arguments, by name; those that are not known here are ignored.

    Args:
        function: the name of the function that was called, for the message.
        arguments: the values.

    Raises:
        ValueError: an argument has a wrong type.

    Example:
        >>> check_arguments("allreduce", {"prescale_factor": "2"})
        Traceback (most recent call last):
        farandole.errors.InvalidRequestError: allreduce: prescale_factor is '2', but should be a number.
    """
    for name, value in arguments.items():
        if name == "process_set":
            check_process_set(value, function)
        elif name in _EXPECTED:
            fits, expected = _EXPECTED[name]
            if not fits(value):
                raise InvalidRequestError(f"{function}: {name} is {repr(value)}, but should be {expected}.")


def several(function: str, given: Any, noun: str) -> Sequence[Any]:
    """Return the tensors in the argument of a grouped function: a list, or anything else that yields tensors.

    It is checked before the call, because a text and a dict yield something else. A tensor yields its rows.

    Args:
        function: the name of the function that was called, for the message.
        given: the argument.
        noun: the framework's word for a tensor.

    Raises:
        ValueError: the argument does not yield tensors, or not in an order that is the same on all ranks.

    Example:
        >>> several("grouped_allreduce", "loss", "array")
        Traceback (most recent call last):
        farandole.errors.InvalidRequestError: grouped_allreduce takes a list of arrays, but got str.
    """
    if isinstance(given, (list, tuple)):
        return given
    instead = ""
    if isinstance(given, Mapping):
        instead = " Pass a list of its values, in the same order on all ranks."
    elif isinstance(given, Set):
        instead = " Pass a list, in the same order on all ranks."
    elif not isinstance(given, (str, bytes)):
        try:
            tensors = iter(given)
        except TypeError:
            instead = f" For one {noun}, pass [{noun}]."
        else:
            return list(tensors)
    raise InvalidRequestError(f"{function} takes a list of {noun}s, but got {type(given).__name__}.{instead}")


def whole(value: Any) -> int:
    """Return a whole number.

    Raises:
        TypeError: it is something else, such as a text or 1.5.
    """
    return operator.index(value)


def factor(value: Any) -> float:
    """Return a factor as a float.

    Raises:
        TypeError: it is not a number: a text, for example.
    """
    if isinstance(value, (str, bytes)):
        raise TypeError("a text is not a factor")
    return float(value)


def _can(convert: Callable[[Any], Any]) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        try:
            convert(value)
        except (TypeError, ValueError):
            return False
        return True

    return fits


_EXPECTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda value: value is None or isinstance(value, str), "a text, such as name='loss'"),
    "op": (
        lambda value: value is None or _can(whole)(value),
        "one of hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max and hvd.Product",
    ),
    "root_rank": (_can(whole), "a rank, which is a whole number"),
    "prescale_factor": (_can(factor), "a number"),
    "postscale_factor": (_can(factor), "a number"),
    "compression": (
        is_compression,
        "one of hvd.Compression, such as hvd.Compression.fp16",
    ),
}
