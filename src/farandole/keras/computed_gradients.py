"""Gradients that the optimizer itself computes, as in Keras 2: `compute_gradients`, and then a step with them.

Horovod's optimizers reduce gradients in `compute_gradients`, and its scripts read or change the result before the step.
So `compute_gradients` also reduces them here, and the step with them does not; any other step reduces the gradients
that it gets. The names are Horovod's. This needs TensorFlow.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from farandole.worker.gradients.wrapper_gradients import GradientReduction


class PassCounter:
    """A counter of backward passes, with the attributes that Horovod's has."""

    def __init__(self, counter: Any) -> None:
        """Create a counter.

        Args:
            counter: the number of passes of the next step so far, a tensor.
        """
        self.counter = counter


class ComputedGradients:
    """A mixin for optimizers with the first half of `minimize`, which computes gradients; subclasses reduce them."""

    _farandole: GradientReduction
    _farandole_computed: Any = None
    """The graph and the variables of computed gradients that no step has used yet."""

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        """Return pairs of a gradient, reduced over all ranks, and its variable, for a step with them.

        With several backward passes per step, the gradients are this rank's own: the step reduces them.

        Args:
            loss: a tensor, or a function that returns it.
            var_list: variables in any structure, or a function that returns them.
            tape: the tape that has recorded the loss; needed if the loss is a tensor.
        """
        return self._compute_gradients(loss, var_list, None, tape)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """Do the same, with given gradients of the loss."""
        pairs = self._own_gradients(loss, var_list, grad_loss, tape)
        if self._several_passes():
            return pairs
        variables = [variable for _, variable in pairs]
        reduced = self._farandole.reduce([gradient for gradient, _ in pairs], variables)
        self.__dict__["_farandole_computed"] = self._place(variables)
        return list(zip(reduced, variables, strict=True))

    def _own_gradients(self, loss: Any, var_list: Any, grad_loss: Any, tape: Any) -> list[tuple[Any, Any]]:
        """Return pairs of this rank's own gradients and their variables."""
        import tensorflow as tf

        plain: Any = super()
        if hasattr(plain, "_compute_gradients"):
            # The older optimizers of Keras 2 have their own way, which subclasses of theirs change.
            return list(plain._compute_gradients(loss, var_list, grad_loss, tape))
        tape = tf.GradientTape() if tape is None else tape
        if callable(loss):
            with tape:
                loss = loss()
        variables = tf.nest.flatten(var_list() if callable(var_list) else var_list)
        return list(zip(tape.gradient(loss, variables, grad_loss), variables, strict=True))

    @abstractmethod
    def _several_passes(self) -> bool:
        """Return whether several backward passes make one step."""

    def _are_computed(self, variables: Sequence[Any]) -> bool:
        """Return whether the gradients of this step are the last computed ones, and reset the record of these."""
        computed, self.__dict__["_farandole_computed"] = self._farandole_computed, None
        return computed is not None and computed == self._place(variables)

    def _place(self, variables: Sequence[Any]) -> Any:
        import tensorflow as tf

        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        return graph, set(map(self._farandole.key_of, variables))
