"""Checks of the arguments of functions that start jobs, in a script or on a cluster of Ray or Spark.

A wrong kind of argument is refused in one sentence, before a worker is started or a cluster is asked for resources.
"""

from __future__ import annotations

import io
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from farandole.errors import SpecError

# Of a value that is shown in an error.
_SHOWN_CHARACTERS = 80
_NULL = "\0"


def check_function(func: object) -> None:
    """Refuse an object that is not a function, before workers are started for it.

    Raises:
        SpecError: it is not.
    """
    if not callable(func):
        raise SpecError(f"{func!r:.80} is not a function", "give the function without calling it: train, not train()")


def check_call(func: object, args: object, kwargs: object, prefix: str = "") -> None:
    """Refuse a call that no worker could make.

    Args:
        func: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        prefix: what the names of the caller's two arguments begin with.

    Raises:
        SpecError: the function cannot be called, or the arguments are not a sequence and a dict.
    """
    check_function(func)
    if not isinstance(args, Iterable) or isinstance(args, (str, bytes, Mapping)):
        raise _refusal(
            f"{prefix}args", args, "a sequence of arguments", f"give a tuple, for one argument {prefix}args=(value,)"
        )
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise _refusal(
            f"{prefix}kwargs", kwargs, "a dict of keyword arguments", f'for example {prefix}kwargs={{"rate": 0.1}}'
        )


def check_callbacks(given: object) -> None:
    """Refuse what is not a sequence of functions.

    Raises:
        SpecError: it is not.
    """
    if not isinstance(given, Sequence) or not all(map(callable, given)):
        raise _refusal("callbacks", given, "a sequence of functions", "give a list, for example callbacks=[print]")


def check_text(name: str, given: object, example: str) -> None:
    """Refuse a value that is neither text nor None.

    Args:
        name: the name of the argument.
        given: its value.
        example: a valid value.

    Raises:
        SpecError: it is neither.
    """
    if given is not None and not isinstance(given, str):
        raise _refusal(name, given, "text", f"for example {name}={example!r}")


def check_path(name: str, given: object) -> None:
    """Refuse a value that is neither a path nor None.

    Raises:
        SpecError: it is neither.
    """
    if given is not None and not isinstance(given, (str, PathLike)):
        raise _refusal(name, given, "a path", "give text or a pathlib.Path, or omit it")


def check_stream(name: str, given: object) -> None:
    """Refuse a value that is neither None nor a stream that text can be written to.

    Raises:
        SpecError: it is neither.
    """
    is_binary = isinstance(given, (io.RawIOBase, io.BufferedIOBase))
    if given is not None and (is_binary or not callable(getattr(given, "write", None))):
        raise _refusal(
            name, given, "a stream of text", "give an object with write(text), such as a file opened with mode 'w'"
        )


def check_flag(name: str, given: object) -> None:
    """Refuse a value that is not a flag, such as the text "False", which counts as true. Numbers and None are flags.

    Raises:
        SpecError: it is not.
    """
    if given is not None and not hasattr(given, "__bool__"):
        raise _refusal(name, given, "True or False", f"give {name}=True or {name}=False, without quotes")


def read_variables(name: str, given: Any) -> dict[str, str]:
    """Return environment variables for workers; numbers and paths are converted to text.

    Args:
        name: the name of the argument.
        given: its value: a mapping, or None for no variables.

    Raises:
        SpecError: no process can have such variables.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        # It may contain secrets.
        raise SpecError(
            f"{name} is a {type(given).__name__}, not a mapping of variables",
            f'give a dict, for example {name}={{"NAME": "value"}}',
        )
    for variable, value in given.items():
        if not isinstance(variable, str) or not variable or "=" in variable or _NULL in variable:
            raise SpecError(f"{variable!r} in {name} is not a name of an environment variable", "give text without =")
        if not isinstance(value, (str, int, float, PathLike)) or _NULL in str(value):
            kind = "text with a null character" if isinstance(value, str) else f"a {type(value).__name__}"
            raise SpecError(
                f"{name}[{variable!r}] is {kind}, which no environment variable can be", "give text or a number"
            )
    return {variable: str(value) for variable, value in given.items()}


def read_count(name: str, given: Any, what: str = "workers", least: int = 1) -> int:
    """Return a number of workers, or of something else that is counted.

    Args:
        name: the name of the argument.
        given: its value.
        what: what is counted, in the plural.
        least: the smallest valid number.

    Raises:
        SpecError: the value is not an integer from `least` up.
    """
    try:
        count = operator.index(given)
    except TypeError:
        count = least - 1
    if count < least:
        raise _refusal(name, given, f"a number of {what}", f"give an integer, {least} or more, or omit it")
    return count


def read_number(name: str, given: Any, unit: str) -> float:
    """Return a number, which may be infinite.

    Args:
        name: the name of the argument.
        given: its value.
        unit: the unit, in the plural.

    Raises:
        SpecError: the value is not a number.
    """
    # Numbers of NumPy are numbers, too, and text is not.
    number = math.nan
    if not isinstance(given, (str, bytes)):
        try:
            number = float(given)
        except (TypeError, ValueError, OverflowError):
            pass
    if math.isnan(number):
        raise _refusal(name, given, f"a number of {unit}", "give an integer or a float")
    return number


def _refusal(name: str, given: object, expected: str, hint: str) -> SpecError:
    shown = repr(given)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = f"{shown[:_SHOWN_CHARACTERS]}..."
    return SpecError(f"{name}={shown} is not {expected}", hint)
