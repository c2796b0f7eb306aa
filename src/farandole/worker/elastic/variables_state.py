"""States of variables, as Horovod's scripts use them. A framework defines how they are read, written and broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from farandole.errors import InvalidRequestError
from farandole.worker.elastic.state import ObjectState
from farandole.worker.elastic.variables import build_optimizer, check_built, variables_of


class VariablesState(ObjectState):
    """A state of variables and Python objects.

    Subclasses define `_read` and `_write`.
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any],
        get_rank: Callable[[], int],
        bcast_array: Callable[[Any, str], Any],
        **kwargs: Any,
    ) -> None:
        """Create a state, whose variables count as committed.

        Args:
            bcast_object: a function that returns rank 0's object on every rank.
            get_rank: a function that returns this worker's rank.
            bcast_array: a function from an array and a name to rank 0's array.
            kwargs: further attributes with their initial values, which must be picklable.
        """
        super().__init__(bcast_object, get_rank, **kwargs)
        self._bcast_array = bcast_array
        self._committed = self._read()

    def save(self) -> None:
        """Make the current values the committed ones."""
        self._committed = self._read()
        super().save()

    def restore(self) -> None:
        """Return to the committed values."""
        self._write(self._committed)
        super().restore()

    def sync(self) -> None:
        """Broadcast the values of rank 0 to all workers, and commit them. A collective.

        Raises:
            InvalidRequestError: this worker's variables differ from rank 0's.
        """
        values = self._read()
        mine = [(tuple(value.shape), value.dtype.name) for value in values]
        theirs = self._bcast_object(mine)
        if mine != theirs:
            raise InvalidRequestError(
                f"this worker's state has {len(mine)} variables, and other shapes or types than the {len(theirs)} of "
                "rank 0. All workers make the same variables before the state: also those of the optimizer, by "
                "optimizer.build(model.trainable_variables)."
            )
        self._write([self._bcast_array(value, f"elastic.variable.{index}") for index, value in enumerate(values)])
        super().sync()

    def _read(self) -> list[Any]:
        """Return copies of all values, as arrays."""
        raise NotImplementedError

    def _write(self, values: Sequence[Any]) -> None:
        """Assign values to the variables."""
        raise NotImplementedError


class ModelState(VariablesState):
    """The state of a Keras model and its optimizer, available as its attributes `model` and `optimizer`."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Create a state.

        Args:
            model: the model, which must be built.
            optimizer: the optimizer, which is built here if necessary; None: the one that the model was compiled with,
                if any.
            kwargs: further attributes, as in `VariablesState`.

        Raises:
            ValueError: the model is not built.
        """
        check_built("model", model)
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        super().__init__(**kwargs)

    def _variables(self) -> list[Any]:
        build_optimizer(self.optimizer, list(self.model.trainable_variables))
        return [*self.model.variables, *(variables_of(self.optimizer) or ())]

    def _read(self) -> list[Any]:
        # If a variable shared its memory with the array, the next step would overwrite the committed value.
        return [variable.numpy().copy() for variable in self._variables()]

    def _write(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._variables(), values, strict=True):
            variable.assign(value)
