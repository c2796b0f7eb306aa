"""Keras 2, as tf_keras: its optimizers, old and new ones, get their gradients by `apply_gradients`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from farandole.core.dtype import Adasum
from farandole.errors import InvalidRequestError
from farandole.keras import backends, keras_hooks
from farandole.keras.gradients import GradientReduction
from farandole.keras.options import Options


class Distributed:
    """What is put in front of the wrapped optimizer's class."""

    _farandole_options: Options
    _farandole: GradientReduction

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _prepare(self)

    def register_local_var(self, variable: Any) -> None:
        """Let the gradient of a variable be each rank's own; see `farandole.keras.optimizer`."""
        self._farandole.register_local(variable)

    def apply_gradients(self, grads_and_vars: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        """Reduce the gradients, and do the wrapped optimizer's step."""
        pairs = list(grads_and_vars)
        plain = super().apply_gradients  # type: ignore[misc]

        def step(gradients: list[Any], variables: list[Any]) -> Any:
            reduced = self._farandole.reduce(gradients, variables)
            return plain(list(zip(reduced, variables, strict=True)), *args, **kwargs)

        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        if self._farandole_options.passes == 1:
            return step(gradients, variables)
        return self._farandole_passes.add(gradients, variables, step, self.iterations)  # type: ignore[attr-defined]


class Passes:
    """Adds up the gradients of several passes, and makes a step with their sum or mean."""

    def __init__(self, options: Options) -> None:
        """Make one that has no variables yet."""
        self._options = options
        self._sums: list[Any] = []
        self._count: Any = None

    def add(
        self, gradients: list[Any], variables: list[Any], step: Callable[[list[Any], list[Any]], Any], iterations: Any
    ) -> Any:
        """Add gradients to what is there; make the step if these are the last ones, else count the iteration."""
        import tensorflow as tf

        present = [place for place, gradient in enumerate(gradients) if gradient is not None]
        shared = [variables[place] for place in present]
        if self._count is None:
            with tf.init_scope():
                self._count = tf.Variable(0, dtype=tf.int64, trainable=False)
                self._sums = [tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False) for each in shared]
        if len(self._sums) != len(shared):
            raise InvalidRequestError(
                f"this call has gradients of {len(shared)} variables, and an earlier one had {len(self._sums)}: with "
                "backward_passes_per_step they are the same ones in each."
            )
        for total, place in zip(self._sums, present, strict=True):
            total.assign_add(tf.convert_to_tensor(gradients[place]))
        count = self._count.assign_add(1)

        def at_the_end() -> Any:
            # `reduce` multiplies what Keras 3 has averaged by the number of passes, where a sum is asked for.
            stepped = step([total / self._options.passes for total in self._sums], shared)
            for total in self._sums:
                total.assign(tf.zeros_like(total))
            # In a graph, the older optimizers return an operation.
            with tf.control_dependencies([] if tf.executing_eagerly() or stepped is None else [stepped]):
                return tf.identity(iterations)

        def before_it() -> Any:
            return tf.identity(iterations.assign_add(1))

        return tf.cond(count % self._options.passes == 0, at_the_end, before_it)


def _tf_keras() -> Any:
    """Return tf_keras if the program uses it; a program that has one of its optimizers does."""
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
    """Return an optimizer that shares all that the given one has, and reduces gradients.

    Raises:
        ValueError: op=Adasum; or the optimizer scales the loss.
    """
    if options.op == Adasum:
        raise InvalidRequestError("Adasum is not there for optimizers of Keras 2: take Keras 3, or op=hvd.Average.")
    if hasattr(optimizer, "inner_optimizer"):
        raise InvalidRequestError(
            "with Keras 2, LossScaleOptimizer cannot be used with DistributedOptimizer, as each rank would skip steps "
            "of its own. Take Keras 3, or the mixed_bfloat16 policy, which needs no scaling."
        )
    keras_hooks.install_for_keras_2(_tf_keras().Model, lambda each: isinstance(each, Distributed))
    kind: Any = type(optimizer)
    cls: Any = type(kind)(
        kind.__name__,
        (Distributed, kind),
        {
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "apply_gradients": backends.chosen("tensorflow").as_it_is(Distributed.apply_gradients),
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
    # Plain attributes: TensorFlow would look into them for variables of a checkpoint.
    made.__dict__["_farandole"] = GradientReduction(made._farandole_options, _key_of, "tensorflow")
    made.__dict__["_farandole_passes"] = Passes(made._farandole_options)


def _key_of(variable: Any) -> Any:
    return variable.ref()
