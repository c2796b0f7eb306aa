"""Keras 2, as tf_keras: its optimizers, old and new ones, get their gradients by `apply_gradients`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from farandole.core.dtype import Adasum
from farandole.errors import InvalidRequestError
from farandole.keras.gradients import GradientReduction
from farandole.keras.options import Options


class Distributed:
    """What is put in front of the wrapped optimizer's class."""

    _farandole_options: Options
    _farandole: GradientReduction

    def register_local_var(self, variable: Any) -> None:
        """Let the gradient of a variable be each rank's own; see `farandole.keras.optimizer`."""
        self._farandole.register_local(variable)

    def apply_gradients(self, grads_and_vars: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        """Reduce the gradients, and do the wrapped optimizer's step."""
        pairs = list(grads_and_vars)
        gradients = self._farandole.reduce([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        reduced = [(gradient, variable) for gradient, (_, variable) in zip(gradients, pairs, strict=True)]
        return super().apply_gradients(reduced, *args, **kwargs)  # type: ignore[misc]


def _tf_keras() -> Any:
    """Return tf_keras if the program uses it; who has one of its optimizers does."""
    return sys.modules.get("tf_keras")


def is_optimizer(optimizer: Any) -> bool:
    """Say whether this is an optimizer of Keras 2."""
    kinds = _tf_keras()
    if kinds is None:
        return False
    return isinstance(optimizer, (kinds.optimizers.Optimizer, kinds.optimizers.legacy.Optimizer))


def layer_types() -> tuple[type, ...]:
    """Return the classes of Keras 2's layers, if the program uses it."""
    kinds = _tf_keras()
    return () if kinds is None else (kinds.layers.Layer,)


def distributed(optimizer: Any, options: Options, name: str | None) -> Any:
    """Return a distributed copy of an optimizer; see `DistributedOptimizer`.

    Raises:
        ValueError: an option that is only there for Keras 3.
    """
    if options.op == Adasum or options.passes > 1:
        raise InvalidRequestError(
            "with optimizers of Keras 2, op is Average or Sum, and backward_passes_per_step is 1. Take Keras 3, or "
            "accumulate the gradients in a loop of your own."
        )
    kind: Any = type(optimizer)
    cls: Any = type(kind)(
        kind.__name__,
        (Distributed, kind),
        {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "_farandole_options": options},
    )
    config = optimizer.get_config()
    if name is not None:
        config["name"] = name
    made = cls.from_config(config)
    made._farandole = GradientReduction(options, _key_of)
    return made


def _key_of(variable: Any) -> Any:
    return variable.ref()
