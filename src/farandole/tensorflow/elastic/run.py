"""`hvd.elastic.run` for TensorFlow, whose errors come out of graphs under other names."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from farandole import errors
from farandole.elastic import run_decorator
from farandole.errors import HorovodInternalError
from farandole.tensorflow.errors import translate

# What a failed collective is to a script, and how TensorFlow quotes it when it was raised in a Python function.
_FAILURES = {
    failure.__name__: failure
    for failure in (
        errors.HorovodInternalError,
        errors.MismatchError,
        errors.ShutDownError,
        errors.StalledError,
        errors.WorkerLostError,
    )
}
_QUOTED = re.compile(rf"\b({'|'.join(_FAILURES)}): (.*)")


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a training function that goes on when workers are lost, come or leave.

    As in `farandole.elastic.run_decorator`; collectives that fail inside of a graph count as well. Any other error of
    TensorFlow's is the script's.

    Args:
        func: takes a `State` as its first argument.

    Example:
        >>> @hvd.elastic.run  # doctest: +SKIP
        ... def train(state):
        ...     for state.batch in range(state.batch, batches):
        ...         train_one_batch()
        ...         state.commit()
        >>> train(hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0))  # doctest: +SKIP
    """

    @functools.wraps(func)
    def translated(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except tf.errors.OpError as error:
            failure = failure_behind(error)
            if failure is None:
                raise
            raise failure from error

    return run_decorator.run(translated)


def failure_behind(error: Exception) -> HorovodInternalError | None:
    """Return the failure of a collective that TensorFlow reports by an error; None if it is about something else.

    The plugin's ops say what they have failed with; of the Python ones TensorFlow quotes the exception.
    """
    failure = translate(error)
    if isinstance(failure, HorovodInternalError):
        return failure
    quoted = _QUOTED.search(str(error))
    return None if quoted is None else _FAILURES[quoted[1]](quoted[2])
