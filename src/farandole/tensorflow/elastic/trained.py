"""The state that a loop of steps trains with TensorFlow: variables, and how newcomers get them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from farandole.errors import InvalidRequestError
from farandole.numpy.elastic.transfer import transfer_arrays
from farandole.tensorflow.elastic import in_loop
from farandole.tensorflow.elastic.checkpoint import Checkpoint
from farandole.worker.core.retry import Gradients
from farandole.worker.elastic.checkpoint.loop_checkpoints import LoopCheckpoints
from farandole.worker.elastic.variables import build_optimizer, check_built, variables_of


class Training:
    """The trained objects, by name: TensorFlow's `farandole.worker.elastic.framework.Trained`.

    Each of them has variables, or a `state_dict` and `load_state_dict`.

    Raises:
        InvalidRequestError: one of them has neither, or no variables yet.
    """

    reduces_once = True

    def __init__(self, things: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
        self._things = things
        self.checkpoints = LoopCheckpoints(checkpoint, things)
        self._optimizers = {name: thing for name, thing in things.items() if hasattr(thing, "apply_gradients")}
        for name, thing in things.items():
            _check(name, thing)
        self._seen = in_loop.reductions()
        """The number of reductions after the last step."""

    def transfer(self, sources: Sequence[int], receivers: Sequence[int], *, may_stream: bool) -> None:
        """Send the receivers the state, which all sources have, all at once. A collective of the world."""
        variables = {
            f"{name}/{index}": variable
            for name, thing in self._things.items()
            for index, variable in enumerate(variables_of(thing) or ())
        }
        others = {name: thing for name, thing in self._things.items() if variables_of(thing) is None}
        came = transfer_arrays(
            lambda: {name: np.array(variable.numpy()) for name, variable in variables.items()},
            lambda: {name: thing.state_dict() for name, thing in others.items()},
            sources,
            receivers,
        )
        if came is None:
            return
        arrays, states = came
        _check_alike(arrays, variables)
        for name, array in arrays.items():
            variables[name].assign(array)
        for name, state in states.items():
            others[name].load_state_dict(state)

    def hand_over(self, gradients: Gradients | None, sources: Sequence[int], receivers: Sequence[int]) -> None:
        """Send the receivers the reduced gradients, which all sources have. A collective of the world."""
        reduced: Any = gradients
        came = transfer_arrays(lambda: reduced.state_dict(), dict, sources, receivers)
        if came is not None:
            reduced.load_state_dict(came[0])

    def has_unused_gradients(self) -> bool:
        """Return False: the gradients belong to the body of the loop.

        Raises:
            InvalidRequestError: the body has reduced none, so that each worker would train separately.
        """
        before, self._seen = self._seen, in_loop.reductions()
        if self._optimizers and self._seen == before:
            raise InvalidRequestError(
                "the body of the loop has reduced no gradients, so each worker would train for itself. Pass them "
                "through hvd.elastic.reduce_gradients(gradients, variables) before optimizer.apply_gradients(...). If "
                "a tf.function reduces them, call it for the first time after hvd.elastic.steps(...) was called: its "
                "graph does not know of a later loop."
            )
        return False

    def scale_rate(self, factor: float) -> None:
        """Multiply the learning rates.

        Raises:
            InvalidRequestError: a learning rate is a schedule.
        """
        for name, optimizer in self._optimizers.items():
            try:
                optimizer.learning_rate = float(np.asarray(optimizer.learning_rate)) * factor
            except TypeError:
                raise InvalidRequestError(
                    f"the learning rate of {name} is a schedule, which cannot be scaled as the world changes: give "
                    "the optimizer a number, or leave out rate=."
                ) from None


def build(things: Mapping[str, Any]) -> None:
    """Make Keras optimizers create their variables for all trainable variables of the models in `things`."""
    trainable = [
        variable
        for thing in things.values()
        if not hasattr(thing, "apply_gradients")
        for variable in getattr(thing, "trainable_variables", ())
    ]
    for thing in things.values():
        if hasattr(thing, "apply_gradients"):
            build_optimizer(thing, trainable)


def _check(name: str, thing: Any) -> None:
    variables = variables_of(thing)
    if variables is None and not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
        raise InvalidRequestError(
            f"{name}={thing!r} has neither variables nor state_dict() and load_state_dict(), by which newcomers could "
            "get it. Store a number in a tf.Variable."
        )
    check_built(name, thing)
    if hasattr(thing, "apply_gradients") and not hasattr(thing, "build"):
        raise InvalidRequestError(
            f"{name} makes its variables in its first step, as {type(thing).__name__} does: newcomers could not get "
            "them. Use an optimizer of Keras."
        )


def _check_alike(arrays: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
    theirs = {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
    mine = {name: (tuple(each.shape), np.array(each.numpy()).dtype.name) for name, each in variables.items()}
    if theirs != mine:
        name = min(name for name, _ in set(theirs.items()) ^ set(mine.items()))
        raise InvalidRequestError(
            f"this worker has other variables than the others: {name} is {theirs.get(name)} there and "
            f"{mine.get(name)} here. Run the same program on all workers, and let the optimizer make its variables "
            "before hvd.elastic.steps(...): optimizer.build(model.trainable_variables)."
        )
