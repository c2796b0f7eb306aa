"""Converts JAX's errors of collectives in compiled functions to farandole's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import jax

from farandole.errors import NOT_INITIALIZED, FarandoleError
from farandole.worker.core.identity import parentage
from farandole.worker.core.status import from_sentence

Function = TypeVar("Function", bound=Callable[..., Any])

# The errors that JAX raises; a ValueError where a program that was run at once has failed at once.
_RAISED = (jax.errors.JaxRuntimeError, ValueError)
# What XLA puts before the sentence of a call: the name of its status.
_CODE = re.compile(r"^(?:[\w ]+: )*?[A-Z_]+: ", re.MULTILINE)


def translate(error: BaseException) -> FarandoleError | None:
    """Return farandole's error for one of JAX's; None if it did not come from a collective.

    Args:
        error: an error such as `jax.errors.JaxRuntimeError`, which JAX raises when a result is read of a compiled
            function in which a collective has failed.

    Example:
        >>> translate(ValueError("something else")) is None
        True
    """
    if not isinstance(error, _RAISED) or isinstance(error, FarandoleError):
        return None
    message = str(error)
    if NOT_INITIALIZED in message:
        return parentage.refusal()
    from farandole.jax.elastic import in_loop  # whose errors XLA hands on as text

    return from_sentence(_CODE.sub("", message)) or in_loop.failure_in(error)


@contextmanager
def translated() -> Iterator[None]:
    """Raise farandole's error instead of JAX's if a collective in a compiled function has failed.

    JAX raises when a result is read, which may be later than the call of the function: read it in this context.

    Example:
        >>> with translated():
        ...     pass
    """
    try:
        yield
    except _RAISED as error:
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
