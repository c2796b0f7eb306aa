"""The distributed optimizer, for the Module API and for training loops that call an updater."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from farandole.errors import InvalidRequestError
from farandole.mxnet.reduction import Reduction
from farandole.worker.core.basics import count_step
from farandole.worker.core.dtype import Average
from farandole.worker.core.group import ProcessSet, global_process_set


class DistributedOptimizer(mx.optimizer.Optimizer):
    """An optimizer that averages gradients over all workers before it applies them.

    Its class is a subclass of the wrapped optimizer's, and it shares its attributes, so it can be used in its place.
    With gluon, use `DistributedTrainer` instead.

    Example:
        >>> optimizer = mx.optimizer.create("sgd", learning_rate=0.1 * hvd.size())  # doctest: +SKIP
        >>> optimizer = hvd.DistributedOptimizer(optimizer)  # doctest: +SKIP
        >>> module.init_optimizer(optimizer=optimizer)  # doctest: +SKIP
    """

    _reduction: Reduction
    _plain: mx.optimizer.Optimizer

    def __new__(
        cls,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        compression: Any = None,
    ) -> DistributedOptimizer:
        """Create an instance of a subclass of both this class and the optimizer's, with the arguments of `__init__`."""
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise InvalidRequestError(
                f"DistributedOptimizer wraps an mx.optimizer.Optimizer, not a {type(optimizer).__name__}. Pass "
                "mx.optimizer.create('sgd', learning_rate=0.1), for example."
            )
        if isinstance(optimizer, DistributedOptimizer):
            raise InvalidRequestError("the optimizer is a DistributedOptimizer already.")
        kind = type(type(optimizer).__name__, (DistributedOptimizer, type(optimizer)), {})
        made: DistributedOptimizer = object.__new__(kind)
        made.__dict__ = optimizer.__dict__
        return made

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        compression: Any = None,
    ) -> None:
        """Wrap an optimizer.

        Args:
            optimizer: the optimizer that applies the averages.
            gradient_predivide_factor: the divisor of the gradients before the sum; after it, they are divided by the
                rest.
            num_groups: the number of groups of an update's gradients, each of which is sent as one.
            process_set: the ranks that take part.
            compression: the form in which the gradients are sent, such as `Compression.fp16`.

        Raises:
            ValueError: an argument is not valid, or init() has not been called.
        """
        # Not in `__dict__`, which is the plain optimizer's, and is pickled with it.
        type(self)._plain = optimizer
        type(self)._reduction = Reduction.checked(
            "DistributedOptimizer",
            op=Average,
            predivide=gradient_predivide_factor,
            num_groups=num_groups,
            compression=compression,
            process_set=process_set,
            prefix="gradient.",
        )

    @property
    def plain(self) -> mx.optimizer.Optimizer:
        """The wrapped optimizer."""
        return type(self)._plain

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the wrapped optimizer in its place; code that loads it must wrap it again."""
        return _itself, (self.plain,)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradients in place, and update the weights. Each argument is one value, or a list."""
        self._average(index, grad)
        type(self)._plain.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Do the same as `update`, with weights of higher precision in the state."""
        self._average(index, grad)
        type(self)._plain.update_multi_precision(index, weight, grad, state)

    def _average(self, index: Any, grad: Any) -> None:
        several = isinstance(index, (tuple, list))
        indices, gradients = (index, grad) if several else ([index], [grad])
        if 0 in indices:
            count_step()
        self._reduction.run(indices, gradients)


def _itself(optimizer: mx.optimizer.Optimizer) -> mx.optimizer.Optimizer:
    return optimizer
