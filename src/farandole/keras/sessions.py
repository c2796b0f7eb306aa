"""Variables of Keras 2 in a graph of TensorFlow 1: their values are in its session, and an assignment is only an op."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from farandole.keras import left_out
from farandole.keras.keras_in_use import KERAS
from farandole.worker.collectives.objects import broadcast_object
from farandole.worker.core.basics import rank


def is_on() -> bool:
    """Return whether models of the program's Keras run in a session."""
    tensorflow = sys.modules.get("tensorflow")
    return KERAS.__name__ == "tf_keras" and tensorflow is not None and not tensorflow.executing_eagerly()


def read(variable: Any) -> Any:
    """Return a variable's value."""
    return _backend().get_value(variable)


def read_all(variables: Sequence[Any]) -> list[Any]:
    """Return the values of variables."""
    values: list[Any] = _backend().batch_get_value(list(variables))
    return values


def write_all(variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Assign values to variables."""
    _backend().batch_set_value(list(zip(variables, values, strict=True)))


def is_in_graph(value: Any) -> bool:
    """Return whether a value is known only when its graph runs."""
    import tensorflow as tf

    return tf.is_tensor(value)


def evaluated(make: Callable[[], Any]) -> Any:
    """Return the value of a tensor that is created in a separate graph, so that the models' graph does not grow."""
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(make())


def make_optimizer_variables(model: Any) -> None:
    """Make the optimizer of a compiled model create its variables, together with the graph of a step."""
    if getattr(model, "optimizer", None) is None or not hasattr(model, "_make_train_function"):
        return
    model._make_train_function()
    if left_out.is_on():
        # The step of a newcomer that is in no training yet reduces no gradients: the training makes another one.
        model.train_function = None


def broadcast_variables(variables: Sequence[Any], root_rank: int) -> None:
    """Assign the root's values to variables."""
    own = read_all(variables) if rank() == root_rank else None
    write_all(variables, broadcast_object(own, root_rank, name="keras.session"))


def _backend() -> Any:
    import tensorflow as tf

    # tf_keras imported under its own name has no functions for sessions; this module has them.
    return tf.compat.v1.keras.backend
