"""Elastic training with `model.fit`, in Horovod's way."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import farandole.numpy as arrays
from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt
from farandole.keras import left_out, sessions
from farandole.keras.callbacks.base import Callback
from farandole.keras.collectives import translate
from farandole.worker.collectives.objects import broadcast_object
from farandole.worker.core.basics import rank
from farandole.worker.elastic import run_decorator
from farandole.worker.elastic.state import ObjectState, State
from farandole.worker.elastic.variables import build_optimizer, check_built, variables_of
from farandole.worker.elastic.variables_state import ModelState

__all__ = [
    "CommitStateCallback",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(ModelState):
    """The state of a model and its optimizer, for any backend.

    Example:
        >>> state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Create a state.

        Args:
            model: the model, which must be built.
            optimizer: the optimizer; None: the one that the model was compiled with.
            kwargs: further attributes with their initial values, which must be picklable.

        Raises:
            ValueError: the model is not built, or an attribute has the name of a method.
        """
        check_built("model", model)
        self.model = model
        if sessions.is_on():
            sessions.make_optimizer_variables(model)
        self._own = self._read_own()
        super().__init__(
            model, optimizer, bcast_object=broadcast_object, get_rank=rank, bcast_array=_broadcast, **kwargs
        )

    def save(self) -> None:
        """Make the current values the committed ones."""
        self._own = self._read_own()
        super().save()

    def restore(self) -> None:
        """Return to the committed values."""
        # With JAX, a step that has failed leaves no variable as it was.
        for variable, value in zip(self._own_variables(), self._own, strict=False):
            variable.assign(value)
        super().restore()

    def on_reset(self) -> None:
        """Run the reset callbacks, whose steps are local to each worker: the state is synced after them."""
        with left_out.during_reset():
            super().on_reset()

    def _read_own(self) -> list[Any]:
        return [variable.numpy().copy() for variable in self._own_variables()]

    def _own_variables(self) -> list[Any]:
        """Return the variables that are not synced: states of random generators, and counts of metrics."""
        if sessions.is_on():
            return []  # There, a step that has failed has written nothing.
        _attach(self.model)
        shared = {id(variable) for variable in self.model.weights}
        return [variable for variable in self.model.variables if id(variable) not in shared]

    def _variables(self) -> list[Any]:
        _attach(self.model)
        if sessions.is_on():
            return [*self.model.weights, *(variables_of(self.optimizer) or ())]
        build_optimizer(self.optimizer, list(self.model.trainable_variables))
        return [*self.model.weights, *(variables_of(self.optimizer) or ())]

    def _read(self) -> list[Any]:
        return sessions.read_all(self._variables()) if sessions.is_on() else super()._read()

    def _write(self, values: Sequence[Any]) -> None:
        if sessions.is_on():
            sessions.write_all(self._variables(), values)
            return
        # A variable takes an array that it is given as its memory, and the committed values have to stay.
        super()._write([value.copy() for value in values])


def _attach(model: Any) -> None:
    """Write a model's state to its variables: with JAX, they do not have it during an epoch."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def _broadcast(value: Any, name: str) -> Any:
    return arrays.broadcast(value, 0, name=name)


P = ParamSpec("P")
R = TypeVar("R")
StateType = TypeVar("StateType", bound=State)


def run(func: Callable[Concatenate[StateType, P], R]) -> Callable[Concatenate[StateType, P], R | None]:
    """Return a training function that continues when workers are lost, join or leave.

    It does the same as in `worker.elastic.run_decorator`, also for collectives that fail in `fit`. Other errors of the
    backend are raised to the script.

    Args:
        func: a function that takes a `State` as its first argument.

    Example:
        >>> @hvd.elastic.run
        ... def train(state):
        ...     model.fit(dataset, epochs=epochs - state.epoch, callbacks=callbacks)
        >>> train(hvd.elastic.KerasState(model, batch=0, epoch=0))
    """

    @functools.wraps(func)
    def translated(state: StateType, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return func(state, *args, **kwargs)
        except Exception as error:
            failure = translate(error)
            if not isinstance(failure, HorovodInternalError):
                raise
            raise failure from error

    # `wraps` gives the first argument a name, for which `Concatenate` has no way.
    return run_decorator.run(cast("Callable[Concatenate[StateType, P], R]", translated))


class CommitStateCallback(Callback):
    """Commits a state after a number of batches, and at the end of each epoch."""

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        """Create the callback.

        Args:
            state: the state to commit.
            batches_per_commit: the number of batches between commits; a larger number costs less, but more work is lost
                with a worker.
        """
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Count from 0, so that all ranks commit at the same time."""
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit, if this is due."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit the state."""
        self.commit()

    def commit(self) -> None:
        """Commit the state; subclasses may do more."""
        self.state.commit()


class UpdateBatchStateCallback(Callback):
    """Stores the number of the batch in a state's `batch`, and skips these batches of the epoch after a reset."""

    def __init__(self, state: Any) -> None:
        """Create the callback, for a state with an attribute `batch`."""
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Reset the length of the epoch, which differs between worlds."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Limit the epoch to its remaining steps."""
        if (self.params or {}).get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Record the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Reset the batch to 0."""
        self.state.batch = 0


class UpdateEpochStateCallback(Callback):
    """Stores the number of the epoch in a state's `epoch`, and continues the count in the next `fit` after a reset."""

    def __init__(self, state: Any) -> None:
        """Create the callback, for a state with an attribute `epoch`."""
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Count from the state's epoch, because Keras counts from 0."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record that the epoch is over."""
        self.state.epoch = self.initial_epoch + epoch + 1
