"""`hvd.elastic.run` for TensorFlow, in which errors of collectives in graphs have other types."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

import tensorflow as tf

from farandole.errors import HorovodInternalError
from farandole.tensorflow.errors import translate
from farandole.worker.elastic import run_decorator
from farandole.worker.elastic.state import State

P = ParamSpec("P")
R = TypeVar("R")
StateType = TypeVar("StateType", bound=State)


def run(func: Callable[Concatenate[StateType, P], R]) -> Callable[Concatenate[StateType, P], R | None]:
    """Return a training function that continues when workers are lost, join or leave.

    It does the same as in `worker.elastic.run_decorator`, also for collectives that fail in a graph. Other errors of
    TensorFlow are raised to the script.

    Args:
        func: a function that takes a `State` as its first argument.

    Example:
        >>> @hvd.elastic.run
        ... def train(state):
        ...     for state.batch in range(state.batch, batches):
        ...         loss = model.train_on_batch(x, y)
        ...         state.commit()
        >>> train(hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0))
    """

    @functools.wraps(func)
    def translated(state: StateType, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return func(state, *args, **kwargs)
        except tf.errors.OpError as error:
            failure = translate(error)
            if not isinstance(failure, HorovodInternalError):
                raise
            raise failure from error

    # `wraps` gives the first argument a name, for which `Concatenate` has no way.
    return run_decorator.run(cast("Callable[Concatenate[StateType, P], R]", translated))
