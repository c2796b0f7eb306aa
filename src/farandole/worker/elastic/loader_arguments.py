"""Checks of the arguments of loaders and of sources of samples.

Samples are read later, often in other processes, and an error of Python there names no argument.
"""

from __future__ import annotations

import operator
from reprlib import repr
from typing import Any

from farandole.errors import InvalidRequestError


def read_whole(name: str, given: Any, least: int | None = None) -> int:
    """Return a whole number as an int.

    Args:
        name: the name of the argument.
        given: its value.
        least: the smallest valid number; None: any number is valid.

    Raises:
        InvalidRequestError: it is something else, or too small.

    Example:
        >>> read_whole("seed", "7")
        Traceback (most recent call last):
        farandole.errors.InvalidRequestError: seed must be a whole number, but is '7'.
    """
    try:
        number = operator.index(given)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        valid = "" if least is None else f" from {least} up"
        raise InvalidRequestError(f"{name} must be a whole number{valid}, but is {repr(given)}.")
    return number


def check_function(name: str, given: Any) -> None:
    """Refuse what is neither a function nor None.

    Raises:
        InvalidRequestError: it is neither.
    """
    if given is not None and not callable(given):
        raise InvalidRequestError(f"{name} must be a function, but is {repr(given)}.")


def check_flag(name: str, given: Any) -> None:
    """Refuse a value that is not a flag, such as the text "False", which counts as true. Numbers and None are flags.

    Raises:
        InvalidRequestError: it is not.
    """
    if given is not None and not hasattr(given, "__bool__"):
        raise InvalidRequestError(f"{name} must be True or False, but is {repr(given)}.")
