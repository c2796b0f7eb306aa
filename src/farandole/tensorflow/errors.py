"""Converts TensorFlow's errors of collectives to farandole's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import tensorflow as tf

from farandole.errors import (
    NOT_INITIALIZED,
    FarandoleError,
    HorovodInternalError,
    MismatchError,
    ShutDownError,
    StalledError,
    WorkerLostError,
)
from farandole.worker.core.identity import parentage
from farandole.worker.core.status import from_sentence

Function = TypeVar("Function", bound=Callable[..., Any])

# As TensorFlow quotes an error of a Python function: by `ops.python_ops`, and in a loop of `elastic.steps`.
_FAILURES = {
    kind.__name__: kind for kind in (HorovodInternalError, MismatchError, ShutDownError, StalledError, WorkerLostError)
}
_QUOTED = re.compile(rf"(?:^|[\n.: ])({'|'.join(_FAILURES)}): ([^\n]*)")
_RANK = re.compile(r"rank (\d+) ")
# What TensorFlow puts before the sentence of an op.
_NODE = re.compile(r"^\{\{function_node [^}]*\}\} ?", re.MULTILINE)


def translate(error: BaseException) -> FarandoleError | None:
    """Return farandole's error for one of TensorFlow's; None if it did not come from a collective.

    Args:
        error: an error such as `tf.errors.UnknownError`, which TensorFlow raises if a worker was lost.

    Example:
        >>> translate(ValueError("something else")) is None
        True
    """
    if not isinstance(error, tf.errors.OpError):
        return None
    message = str(error.message)
    if NOT_INITIALIZED in message:
        return parentage.refusal()
    return from_sentence(_NODE.sub("", message)) or _quoted(message)


def _quoted(message: str) -> FarandoleError | None:
    """Return the error of a collective that a Python function has raised, if it is one."""
    found = _QUOTED.search(message)
    if found is None:
        return None
    kind, sentence = found.groups()
    rank = _RANK.match(sentence)
    for about_a_rank in (WorkerLostError, ShutDownError):
        if kind == about_a_rank.__name__ and rank is not None:
            return about_a_rank(sentence, int(rank[1]))
    return _FAILURES[kind](sentence)


@contextmanager
def translated() -> Iterator[None]:
    """Raise farandole's error instead of TensorFlow's if a collective has failed.

    Example:
        >>> with translated():
        ...     pass
    """
    try:
        yield
    except tf.errors.OpError as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error


def translating(function: Function) -> Function:
    """Return a function whose errors are translated, as in `translated`."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with translated():
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]
