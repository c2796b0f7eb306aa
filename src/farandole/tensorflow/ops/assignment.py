"""Variables that get the result of a collective."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def assigned(variable: Any, value: Any) -> Any:
    """Assign a value to a variable, and return it as a tensor, which in a graph is there after the assignment.

    The variable takes the memory of the value over, so that this costs no copy.
    """
    operation = variable.assign(value, read_value=False)
    if operation is None or tf.executing_eagerly():
        return value
    with tf.control_dependencies([operation]):
        return tf.identity(value)
