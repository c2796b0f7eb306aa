"""`FabricStrategy`: Lightning Fabric with farandole's optimizer wrapper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric.strategies.parallel import ParallelStrategy
from lightning.fabric.strategies.strategy import _BackwardSyncControl
from lightning.fabric.utilities.rank_zero import rank_zero_only

import farandole.torch as hvd
from farandole.lightning.collectives import Collectives
from farandole.lightning.environment import FarandoleEnvironment
from farandole.torch.optimizer import has_unused_gradients, is_distributed

_UNTIL_THE_STEP = 1 << 30
"""A number of backward passes that is never reached, so that the step itself reduces the gradients."""


class FabricStrategy(Collectives, ParallelStrategy):
    """Trains on all workers that `farandole run` has started; `devices` and `num_nodes` are ignored.

    Args:
        compression: the form in which gradients are sent, as for `hvd.DistributedOptimizer`.
        op: the reduction of gradients.
        kwargs: arguments of Fabric's `ParallelStrategy`.

    Example:
        >>> fabric = lightning.Fabric(strategy="farandole", accelerator="cpu")
        >>> fabric.launch()
        >>> model, optimizer = fabric.setup(model, optimizer)
    """

    def __init__(self, *, compression: Any = hvd.Compression.none, op: int = hvd.Average, **kwargs: Any) -> None:
        if kwargs.get("cluster_environment") is None:
            kwargs["cluster_environment"] = FarandoleEnvironment()
        super().__init__(**kwargs)
        self._compression, self._op = compression, op
        self._backward_sync_control = _LocalPasses(self)
        self._optimizers: list[Any] = []

    def setup_environment(self) -> None:
        """Prepare the device, and the rank of this worker."""
        rank_zero_only.rank = hvd.rank()
        super().setup_environment()

    def module_to_device(self, module: torch.nn.Module) -> None:
        """Move a module to the device of this worker."""
        module.to(self.root_device)

    def setup_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Broadcast the weights of rank 0 to all workers."""
        hvd.broadcast_parameters(module.state_dict(), root_rank=0)
        return module

    def setup_module_and_optimizers(
        self, module: torch.nn.Module, optimizers: list[Any], scheduler: Any = None
    ) -> tuple[torch.nn.Module, list[Any], Any]:
        """Broadcast the weights of rank 0 to all workers, and make the optimizers use reduced gradients."""
        self.setup_module(module)
        named = list(module.named_parameters())
        wrapped = [hvd.DistributedOptimizer(each, named, self._compression, op=self._op) for each in optimizers]
        self._optimizers += wrapped
        return module, wrapped, scheduler

    def setup_optimizer(self, optimizer: Any) -> Any:
        """Make an optimizer use reduced gradients, which are matched by their positions in its groups."""
        if not is_distributed(optimizer):
            optimizer = hvd.DistributedOptimizer(optimizer, compression=self._compression, op=self._op)
            self._optimizers.append(optimizer)
        return optimizer

    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any:
        """Take the step of an optimizer, after its gradients have been reduced."""
        self._reduce_gradients(optimizer)
        with optimizer.skip_synchronize():
            return super().optimizer_step(optimizer, **kwargs)

    def clip_gradients_norm(self, module: Any, optimizer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Reduce the gradients, then clip them by their norm."""
        self._reduce_gradients(optimizer)
        return super().clip_gradients_norm(module, optimizer, *args, **kwargs)

    def clip_gradients_value(self, module: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Reduce the gradients, then clip them by their values."""
        self._reduce_gradients(optimizer)
        super().clip_gradients_value(module, optimizer, *args, **kwargs)

    def accumulate(self, passes: int) -> None:
        """Set the number of backward passes after which gradients are reduced."""
        for optimizer in self._optimizers:
            optimizer.set_backward_passes_per_step(passes)

    def _reduce_gradients(self, optimizer: Any) -> None:
        if has_unused_gradients(optimizer) or not optimizer._synchronized:
            optimizer.synchronize()


class _LocalPasses(_BackwardSyncControl):
    """`fabric.no_backward_sync`: backward passes that add to the gradients of this worker only."""

    def __init__(self, strategy: FabricStrategy) -> None:
        self._strategy = strategy

    @contextmanager
    def no_backward_sync(self, module: torch.nn.Module, enabled: bool) -> Iterator[None]:
        """Do not reduce the gradients of the backward passes in this block, if enabled, before the step."""
        if enabled:
            self._strategy.accumulate(_UNTIL_THE_STEP)
        yield
