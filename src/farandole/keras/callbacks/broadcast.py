"""Broadcasting variables at the beginning of a training."""

from __future__ import annotations

from typing import Any

from farandole.errors import InvalidRequestError
from farandole.keras import sessions
from farandole.keras.callbacks.base import Callback, build
from farandole.keras.variables import broadcast_variables, model_variables
from farandole.worker.collectives.objects import allgather_object
from farandole.worker.core.basics import rank


class BroadcastGlobalVariablesCallback(Callback):
    """Broadcasts the root's variables of the model and its optimizer when a training begins.

    If these variables are created in the first step, it does so after this step.

    Example:
        >>> history = model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        """Create the callback.

        Args:
            root_rank: the rank whose variables are broadcast.
            device: ignored.
            local_variables: a variable, or several, that are not broadcast.
        """
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local: set[int] = set()
        local = [] if local_variables is None else local_variables
        for variable in local if isinstance(local, (list, tuple, set)) else [local]:
            self.register_local_var(variable)

    def register_local_var(self, variable: Any) -> None:
        """Exclude a variable from the broadcast.

        Raises:
            ValueError: it is not a variable.
        """
        if not hasattr(variable, "assign"):
            raise InvalidRequestError(f"All local variables must be of tf.Variable type, or Keras': {variable!r}.")
        self._local.add(_key_of(variable))

    def on_train_begin(self, logs: Any = None) -> None:
        """Check that all workers take the same number of steps, and broadcast variables that exist."""
        check_steps((self.params or {}).get("steps"))
        if build(self.model):
            self._broadcast()

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast, if this was not done yet."""
        self._broadcast()

    def _broadcast(self) -> None:
        if not self.broadcast_done:
            shared = [each for each in model_variables(self.model) if _key_of(each) not in self._local]
            broadcast = sessions.broadcast_variables if sessions.is_on() else broadcast_variables
            broadcast(shared, self.root_rank)
            self.broadcast_done = True


def check_steps(steps: int | None) -> None:
    """Raise InvalidRequestError, on all ranks, if they would take different numbers of steps in an epoch.

    Args:
        steps: the number of steps of this rank; None if it is not known.
    """
    every = allgather_object(steps, name="keras.steps")
    known = {each for each in every if each is not None}
    if len(known) > 1:
        counts = ", ".join(f"rank {number} {each}" for number, each in enumerate(every))
        raise InvalidRequestError(
            f"the workers would take different numbers of steps in an epoch ({counts}), and those with more would wait "
            "for the others. Give each worker its part of the data by hvd.shard(...), or pass steps_per_epoch. (This "
            f"is rank {rank()}.)"
        )


def _key_of(variable: Any) -> int:
    # A variable of Keras holds TensorFlow's; which of them the user has named does not matter.
    held = getattr(variable, "_value", None)
    return id(held if hasattr(held, "assign") else variable)
