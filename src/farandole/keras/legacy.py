"""Keras 2, as tf_keras: its optimizers, both old and new ones, get their gradients in `apply_gradients`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from farandole.errors import InvalidRequestError
from farandole.keras import backends, keras_hooks
from farandole.keras.computed_gradients import ComputedGradients, PassCounter
from farandole.keras.reduction import reduction
from farandole.worker.core.dtype import Adasum
from farandole.worker.gradients.wrapper_gradients import GradientReduction
from farandole.worker.gradients.wrapper_options import WrapperOptions


class Distributed(ComputedGradients):
    """A mixin class in front of the wrapped optimizer's class."""

    _farandole_options: WrapperOptions
    _farandole: GradientReduction
    _farandole_passes: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _prepare(self)

    def register_local_var(self, variable: Any) -> None:
        """Mark a variable as local: its gradient is not reduced, as in `farandole.keras.optimizer`."""
        self._farandole.register_local(variable)

    @property
    def _agg_helper(self) -> PassCounter | None:
        return PassCounter(self._farandole_passes.counter) if self._several_passes() else None

    def _several_passes(self) -> bool:
        return self._farandole_options.passes > 1

    def apply_gradients(self, grads_and_vars: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        """Reduce the gradients, and take the wrapped optimizer's step."""
        pairs = list(grads_and_vars)
        plain = super().apply_gradients  # type: ignore[misc]
        if self._are_computed([variable for _, variable in pairs]):
            return plain(pairs, *args, **kwargs)

        def step(gradients: list[Any], variables: list[Any]) -> Any:
            reduced = self._farandole.reduce(gradients, variables)
            return plain(list(zip(reduced, variables, strict=True)), *args, **kwargs)

        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        if self._farandole_options.passes == 1:
            return step(gradients, variables)
        present = [place for place, gradient in enumerate(gradients) if gradient is not None]
        shared = [variables[place] for place in present]
        totals, is_last = self._farandole_passes.add([gradients[place] for place in present], shared)
        return _at_the_last(is_last, lambda: step(totals, shared), self.iterations)  # type: ignore[attr-defined]


# What AutoGraph must not rewrite within functions of the user's.
_OURS = ("apply_gradients", "_compute_gradients")


def _at_the_last(is_last: Any, step: Callable[[], Any], iterations: Any) -> Any:
    """Take the step if this is the last pass, else count the iteration."""
    import tensorflow as tf

    def at_the_end() -> Any:
        stepped = step()
        # In a graph, the older optimizers return an operation.
        with tf.control_dependencies([] if tf.executing_eagerly() or stepped is None else [stepped]):
            return tf.identity(iterations)

    def before_it() -> Any:
        return tf.identity(iterations.assign_add(1))

    return tf.cond(is_last, at_the_end, before_it)


def _tf_keras() -> Any:
    """Return tf_keras if the program uses it; a program with one of its optimizers uses it."""
    return sys.modules.get("tf_keras")


def is_optimizer(optimizer: Any) -> bool:
    """Return whether this is an optimizer of Keras 2."""
    kinds = _tf_keras()
    if kinds is None:
        return False
    return isinstance(optimizer, (kinds.optimizers.Optimizer, kinds.optimizers.legacy.Optimizer))


def distributed(optimizer: Any, options: WrapperOptions, name: str | None) -> Any:
    """Return an optimizer that shares the given one's state, and reduces gradients.

    Raises:
        ValueError: op is Adasum, or the optimizer scales the loss.
    """
    if options.op == Adasum:
        raise InvalidRequestError("Adasum is not available for optimizers of Keras 2: use Keras 3, or op=hvd.Average.")
    if hasattr(optimizer, "inner_optimizer"):
        raise InvalidRequestError(
            "with Keras 2, LossScaleOptimizer cannot be used with DistributedOptimizer, as each rank would skip steps "
            "of its own. Use Keras 3, or the mixed_bfloat16 policy, which needs no scaling."
        )
    keras_hooks.install_for_keras_2(_tf_keras().Model, lambda each: isinstance(each, Distributed))
    kind: Any = type(optimizer)
    cls: Any = type(kind)(
        kind.__name__,
        (Distributed, kind),
        {
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            **{name: backends.chosen("tensorflow").as_it_is(getattr(Distributed, name)) for name in _OURS},
            "_farandole_options": options,
        },
    )
    made = cls.__new__(cls)
    made.__dict__.update(optimizer.__dict__)
    if name is not None:
        made.__dict__["_name"] = name
    _prepare(made)
    return made


def _prepare(made: Any) -> None:
    from farandole.tensorflow.passes import Passes

    options = made._farandole_options
    # Plain attributes: TensorFlow would look into them for variables of a checkpoint.
    made.__dict__["_farandole"] = reduction(replace(options, passes=1), _key_of, "tensorflow")
    made.__dict__["_farandole_passes"] = Passes(options.passes, averaged=options.average_passes)


def _key_of(variable: Any) -> Any:
    return variable.ref()
