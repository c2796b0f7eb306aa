"""`hvd.elastic.run` for TensorFlow, whose errors come out of graphs under other names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from farandole.elastic import run_decorator
from farandole.errors import HorovodInternalError
from farandole.tensorflow.errors import translate


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
            failure = translate(error)
            if not isinstance(failure, HorovodInternalError):
                raise
            raise failure from error

    return run_decorator.run(translated)
