"""The container of the state that a training changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class TrainState:
    """The state that a training changes, as attributes: newcomers get it, and every step stores its results in it.

    Each attribute is a pytree, whose structure, shapes and types do not change: parameters, the state of an optimizer,
    a number of steps. Leaves are arrays, or picklable Python values.

    Example:
        >>> state = hvd.elastic.TrainState(params=params, optimizer=optimizer.init(params))
        >>> state.params, state.optimizer = step(state.params, state.optimizer, batch)
    """

    if TYPE_CHECKING:
        # Its attributes are the user's.
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, **trees: Any) -> None:
        self.__dict__.update(trees)
