"""The methods that `DistributedOptimizer` adds to an optimizer, as a type."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ReducesGradients(Protocol):
    """The methods of a `DistributedOptimizer` besides those of the optimizer's own class.

    Type checkers know that torch's own optimizers have them when wrapped. For your own class, assert it:

    Example:
        >>> optimizer = hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1))
        >>> assert isinstance(optimizer, hvd.ReducesGradients)
        >>> optimizer.synchronize()
    """

    backward_passes_per_step: int

    def synchronize(self) -> None:
        """Wait until all gradients are reduced."""

    def skip_synchronize(self) -> AbstractContextManager[Any]:
        """Make `step()` not synchronize, because `synchronize()` was already called."""

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes in one step, from the next step on."""
