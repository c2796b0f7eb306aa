"""Models and optimizers of any framework as lists of variables, which have `numpy()` and `assign(value)`."""

from __future__ import annotations

from typing import Any

from farandole.errors import InvalidRequestError


def variables_of(thing: Any) -> list[Any] | None:
    """Return the variables of an object, in an order that is the same on all ranks; None if it has none.

    Args:
        thing: a variable, an object with `variables`, such as a Keras model, an optimizer or a module, or a list of
            these.
    """
    if hasattr(thing, "assign") and hasattr(thing, "numpy"):
        return [thing]
    variables = getattr(thing, "variables", None)
    if variables is None:
        if not isinstance(thing, (list, tuple)):
            return None
        found = [variables_of(each) for each in thing]
        return None if None in found else [variable for each in found for variable in each or ()]
    # The optimizers of tf.compat.v1.train have a method.
    return list(variables() if callable(variables) and not isinstance(variables, list) else variables)


def is_built(thing: Any) -> bool:
    """Return whether a Keras model or optimizer has created its variables."""
    return bool(getattr(thing, "built", True))


def check_built(name: str, thing: Any) -> None:
    """Raise InvalidRequestError if an object has not created its variables yet."""
    if not is_built(thing):
        raise InvalidRequestError(
            f"{name} must be built first, as it has no variables yet that other workers could get: call "
            f"{name}.build(...), or let a model have an Input."
        )


def build_optimizer(optimizer: Any, trainable: list[Any]) -> None:
    """Make a Keras optimizer create its variables; do nothing if it has them, or creates them in another way."""
    if trainable and not is_built(optimizer) and hasattr(optimizer, "build"):
        optimizer.build(trainable)
