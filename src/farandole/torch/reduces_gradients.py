"""The methods that `DistributedOptimizer` adds to an optimizer, as a type."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ReducesGradients(Protocol):
    """The methods of a `DistributedOptimizer` beside those of the optimizer's own class.

    Type checkers know that of torch's own optimizers. For an optimizer of your own class, tell them:

    Example:
        >>> optimizer = hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1))
        >>> assert isinstance(optimizer, hvd.ReducesGradients)
        >>> optimizer.synchronize()
    """

    backward_passes_per_step: int

    def synchronize(self) -> None:
        """Wait until all gradients are reduced."""

    def skip_synchronize(self) -> AbstractContextManager[Any]:
        """Let `step()` not synchronize, because `synchronize()` was called before."""

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes make one step, from the next step on."""
