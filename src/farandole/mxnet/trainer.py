"""gluon's trainer, whose gradients are reduced over all workers."""

from __future__ import annotations

import warnings
from typing import Any

import mxnet as mx

from farandole.errors import InvalidRequestError
from farandole.mxnet.compression import Compression
from farandole.mxnet.optimizer import DistributedOptimizer
from farandole.mxnet.reduction import Reduction
from farandole.worker.core.basics import count_step
from farandole.worker.core.dtype import Sum
from farandole.worker.core.group import ProcessSet, global_process_set


class DistributedTrainer(mx.gluon.Trainer):
    """A `mx.gluon.Trainer` for several workers: `step()` applies the average of all workers' gradients.

    As in Horovod, `allreduce_grads()` leaves the *sum* in the gradients, and `update()` divides: code that clips
    between the two clips sums.

    Example:
        >>> trainer = hvd.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 0.001})  # doctest: +SKIP
        >>> hvd.broadcast_parameters(net.collect_params(), root_rank=0)  # doctest: +SKIP
        >>> with mx.autograd.record():  # doctest: +SKIP
        ...     loss = criterion(net(images), labels)
        >>> loss.backward()  # doctest: +SKIP
        >>> trainer.step(batch_size)  # doctest: +SKIP
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Create a trainer.

        Args:
            params: the parameters to train, such as `net.collect_params()`.
            optimizer: a name such as "sgd", or an optimizer.
            optimizer_params: arguments of the optimizer, if it is given by name.
            compression: the form in which the gradients are sent, such as `Compression.fp16`.
            gradient_predivide_factor: the divisor of the gradients before the sum; after it, they are divided by the
                rest.
            prefix: the prefix of the names by which ranks' gradients match. Each of several trainers needs its own.
            num_groups: the number of groups of gradients, each of which is sent as one.
            process_set: the ranks that take part.

        Raises:
            ValueError: an argument is not valid, or init() has not been called.
        """
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer reduces the gradients itself, and takes the plain optimizer out of the "
                "DistributedOptimizer that it was given.",
                UserWarning,
                stacklevel=2,
            )
            optimizer = optimizer.plain
        self._reduction = Reduction.checked(
            "DistributedTrainer",
            op=Sum,
            predivide=gradient_predivide_factor,
            num_groups=num_groups,
            compression=compression,
            process_set=process_set,
            prefix=f"gradient.{prefix or ''}",
        )
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        if not self._reduction.is_local:
            # The optimizer multiplies gradients by this times 1/batch_size.
            self._scale *= gradient_predivide_factor / len(process_set.ranks)

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Reduce the gradients and update the parameters; `batch_size` is this worker's."""
        count_step()
        super().step(batch_size, ignore_stale_grad)

    def _allreduce_grads(self) -> None:
        trained = [(place, each) for place, each in enumerate(self._params) if each.grad_req != "null"]
        gradients = []
        for _, parameter in trained:
            of_contexts = parameter.list_grad()
            if len(of_contexts) > 1:
                raise InvalidRequestError(
                    f"parameter {parameter.name} is on {len(of_contexts)} devices, and a worker trains on one. Start "
                    "one worker for each device."
                )
            gradients += of_contexts
        self._reduction.run([place for place, _ in trained], gradients)
