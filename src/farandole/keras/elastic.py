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
    """The state of a model and its optimizer, of whatever backend.

    Example:
        >>> state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Make a state.

        Args:
            model: built.
            optimizer: None: the one that the model was compiled with.
            kwargs: more attributes, with their first values, which can be pickled.

        Raises:
            ValueError: the model is not built, or an attribute would hide a method.
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
        """Go back to the committed values."""
        # With JAX, a step that has failed leaves no variable as it was.
        for variable, value in zip(self._own_variables(), self._own, strict=False):
            variable.assign(value)
        super().restore()

    def on_reset(self) -> None:
        """Run the reset callbacks, whose steps are each worker's own: the state is synced after them."""
        with left_out.during_reset():
            super().on_reset()

    def _read_own(self) -> list[Any]:
        return [variable.numpy().copy() for variable in self._own_variables()]

    def _own_variables(self) -> list[Any]:
        """Return the variables that other workers do not get: states of random generators, and counts of metrics."""
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
    """Let the variables of a model have its state: with JAX, they do not while an epoch lasts."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def _broadcast(value: Any, name: str) -> Any:
    return arrays.broadcast(value, 0, name=name)


P = ParamSpec("P")
R = TypeVar("R")
StateType = TypeVar("StateType", bound=State)


def run(func: Callable[Concatenate[StateType, P], R]) -> Callable[Concatenate[StateType, P], R | None]:
    """Return a training function that goes on when workers are lost, come or leave.

    As in `worker.elastic.run_decorator`; collectives that fail inside of `fit` count as well. Any other error of the
    backend's is the script's.

    Args:
        func: takes a `State` as its first argument.

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
    """Commits a state after some batches, and at the end of each epoch."""

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        """Make one.

        Args:
            state: the state to commit.
            batches_per_commit: the number of batches between commits; a larger one costs less, but loses more when a
                worker is lost.
        """
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Count anew, so that all ranks commit at the same time."""
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit, if it is time."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit."""
        self.commit()

    def commit(self) -> None:
        """Commit the state; subclasses may do more."""
        self.state.commit()


class UpdateBatchStateCallback(Callback):
    """Writes the number of the batch into a state's `batch`, and lets the epoch be as much shorter after a reset."""

    def __init__(self, state: Any) -> None:
        """Make one; the state has an attribute `batch`."""
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Forget the length of the epoch, which is another one in another world."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Let the epoch have only the rest of its steps."""
        if (self.params or {}).get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Record the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begin with the first batch again."""
        self.state.batch = 0


class UpdateEpochStateCallback(Callback):
    """Writes the number of the epoch into a state's `epoch`, counted on from one `fit` to the next after a reset."""

    def __init__(self, state: Any) -> None:
        """Make one; the state has an attribute `epoch`."""
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Count from the state's epoch on: Keras counts from 0."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record that the epoch is over."""
        self.state.epoch = self.initial_epoch + epoch + 1
