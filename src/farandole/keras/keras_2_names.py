"""Attributes of Keras 2's optimizers, added to those of Keras 3: `optimizer.variables()` and `optimizer.lr`."""

from __future__ import annotations

from typing import Any

import keras


class VariableList(list):
    """The variables of an optimizer, as a list that can be called, as scripts for Keras 2 do."""

    def __call__(self) -> VariableList:
        """Return the list."""
        return self


def learning_rate(optimizer: Any) -> Any:
    """Return the learning rate; with TensorFlow its variable, which `keras.backend.set_value` also accepts."""
    rate = optimizer.learning_rate
    return rate.value if isinstance(rate, keras.Variable) and keras.config.backend() == "tensorflow" else rate


def set_learning_rate(optimizer: Any, rate: Any) -> None:
    """Set the learning rate."""
    optimizer.learning_rate = rate


lr = property(learning_rate, set_learning_rate, doc="The learning rate, under the name that it had in Keras 2.")


def install() -> None:
    """Add the attributes to all optimizers of Keras 3 in this process; no-op if they have them."""
    base = next(each for each in keras.optimizers.Optimizer.__mro__ if "learning_rate" in vars(each))
    if hasattr(base, "lr"):
        return
    for kind in (base, keras.optimizers.LossScaleOptimizer):
        plain = vars(kind).get("variables")
        if isinstance(plain, property):
            kind.variables = property(_callable(plain), doc=plain.__doc__)
    base.lr = lr


def _callable(plain: property) -> Any:
    return lambda optimizer: VariableList(plain.__get__(optimizer))
