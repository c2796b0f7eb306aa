"""Assigning the result of a collective to variables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def assigned(variable: Any, value: Any) -> Any:
    """Assign a value to a variable, and return it as a tensor, which in a graph depends on the assignment.

    The variable adopts the memory of the value, so this costs no copy.
    """
    operation = variable.assign(value, read_value=False)
    if operation is None or tf.executing_eagerly():
        return value
    with tf.control_dependencies([operation]):
        return tf.identity(value)
