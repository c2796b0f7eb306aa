"""`FarandoleStrategy`: Lightning's Trainer with farandole's optimizer wrapper, in fixed and in elastic jobs.

The model is not wrapped. Gradients are reduced while the backward pass runs, and are complete at its end, before
Lightning clips them. In elastic jobs, the batches of `fit` come from a loop of `hvd.elastic.steps`
(`farandole.lightning.elastic_fit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only as fabric_rank_zero_only
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torchmetrics import Metric

import farandole.torch as hvd
from farandole.errors import InvalidRequestError
from farandole.lightning.collectives import Collectives, gather_for_metric, is_more_than_one
from farandole.lightning.elastic_fit import ElasticBatches
from farandole.lightning.environment import FarandoleEnvironment
from farandole.torch.optimizer import has_unused_gradients
from farandole.worker.elastic.batches import RatePolicy
from farandole.worker.elastic.world_changes import is_elastic


class FarandoleStrategy(Collectives, ParallelStrategy):
    """Trains on all workers that `farandole run` has started.

    The Trainer's `devices` and `num_nodes` are ignored: the launcher decides the number of workers.

    Args:
        compression: the form in which gradients are sent, as for `hvd.DistributedOptimizer`.
        op: the reduction of gradients: Average (the default), Sum, Min, Max or Product.
        global_batch_size: in elastic jobs, the samples of a step on all workers together. None: the `batch_size` of the
            DataLoader for each worker.
        rate: in elastic jobs, the change of the learning rate with the number of workers, such as
            `hvd.elastic.LinearScaling()`; by default, it does not change.
        kwargs: arguments of Lightning's `ParallelStrategy`.

    Example:
        >>> strategy = FarandoleStrategy(compression=hvd.Compression.bf16)
        >>> trainer = lightning.Trainer(strategy=strategy, accelerator="cpu")
    """

    strategy_name = "farandole"
    model: Any
    optimizers: Any

    def __init__(
        self,
        *,
        compression: Any = hvd.Compression.none,
        op: int = hvd.Average,
        global_batch_size: int | None = None,
        rate: RatePolicy | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("cluster_environment") is None:
            kwargs["cluster_environment"] = FarandoleEnvironment()
        super().__init__(**kwargs)
        if op == hvd.Adasum:
            raise InvalidRequestError("with Lightning, gradients cannot be reduced with Adasum. Pass another op.")
        self._compression, self._op = compression, op
        self._global_batch_size, self._rate = global_batch_size, rate
        self._accumulates = False
        self._batches: ElasticBatches | None = None

    @property
    def is_distributed(self) -> bool:
        """Return True, so that Lightning distributes samplers and reduces logged values."""
        return True

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Return the arguments of a DistributedSampler."""
        return {"num_replicas": hvd.size(), "rank": hvd.rank()}

    def set_world_ranks(self) -> None:
        """Set the rank of this worker for Lightning's functions that run on rank 0 only."""
        rank_zero_only.rank = fabric_rank_zero_only.rank = hvd.rank()

    def setup_environment(self) -> None:
        """Prepare the device, and the ranks of this worker."""
        self.set_world_ranks()
        super().setup_environment()

    def setup(self, trainer: Any) -> None:
        """Prepare model and optimizers for a run of the Trainer."""
        if self._layer_sync is not None:
            self.model = hvd.convert_sync_batchnorm(self.model)
        if self._is_elastic_fit(trainer):
            _check_elastic(trainer)
            # A sampler's share assumes a world that does not change, so each worker validates with all samples.
            trainer._accelerator_connector.use_distributed_sampler = False
        super().setup(trainer)
        for module in self.lightning_module.modules():
            if isinstance(module, Metric):
                module.dist_sync_fn, module.distributed_available_fn = gather_for_metric, is_more_than_one

    def model_to_device(self) -> None:
        """Move the model to its device, and broadcast the weights of rank 0 to all workers."""
        assert self.model is not None
        self.model.to(self.root_device)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)

    def setup_optimizers(self, trainer: Any) -> None:
        """Make the optimizers of the module use reduced gradients."""
        super().setup_optimizers(trainer)
        assert self.lightning_module is not None
        named = dict(self.lightning_module.named_parameters())
        for optimizer in self.optimizers:
            if isinstance(optimizer, torch.optim.LBFGS):
                raise InvalidRequestError(
                    "LBFGS calls the training step an unknown number of times: use "
                    'DDPStrategy(process_group_backend="farandole").'
                )
            # A schedule was made with this optimizer, and warns if it is not the one that steps.
            optimizer._opt_called = True
        self.optimizers = [
            hvd.DistributedOptimizer(
                each,
                named.items(),
                self._compression,
                backward_passes_per_step=trainer.accumulate_grad_batches,
                op=self._op,
            )
            for each in self.optimizers
        ]

    # --- data ------------------------------------------------------------------------------------------------------

    def process_dataloader(self, dataloader: Any) -> Any:
        """Replace the training batches of elastic jobs by those of a loop of steps."""
        trainer = self.lightning_module.trainer
        if not (self._is_elastic_fit(trainer) and trainer.training):
            return dataloader
        if self._batches is not None:
            raise InvalidRequestError("an elastic job trains with one DataLoader: combine the datasets into one.")
        self._batches = ElasticBatches(self, trainer, dataloader, self._global_batch_size, self._rate)
        return self._batches

    def on_train_start(self) -> None:
        """Make the loop of steps decide when the epochs of an elastic job end."""
        if self._batches is not None:
            self._batches.begin()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Follow a change of `accumulate_grad_batches`, and of the epoch's length in elastic jobs."""
        trainer = self.lightning_module.trainer
        for optimizer in self.optimizers:
            if optimizer.backward_passes_per_step != trainer.accumulate_grad_batches:
                optimizer.set_backward_passes_per_step(trainer.accumulate_grad_batches)
        if self._batches is not None:
            self._batches.measure()

    def on_train_end(self) -> None:
        """End the loop of steps together with the other workers."""
        if self._batches is not None:
            self._batches.end()
            self._batches, self.is_alone = None, False

    # --- steps -----------------------------------------------------------------------------------------------------

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Make backward passes add to the gradients of this worker only."""
        self._accumulates = True
        try:
            yield
        finally:
            self._accumulates = False

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        """Wait for the reduced gradients, which Lightning may clip before the step."""
        if self._accumulates:
            return
        is_automatic = self.lightning_module.automatic_optimization
        for optimizer in self.optimizers:
            if is_automatic or has_unused_gradients(optimizer):
                optimizer.synchronize()

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: torch.nn.Module | None = None, **kwargs: Any
    ) -> Any:
        """Take the step of an optimizer; `closure` computes the gradients, in Lightning's automatic optimization."""
        with optimizer.skip_synchronize():
            result = super().optimizer_step(optimizer, closure, model, **kwargs)
        if self._batches is not None:
            self._batches.measure()
        return result

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return a tensor reduced over all workers, as `all_reduce` does."""
        return self.all_reduce(tensor, group, reduce_op)

    def _is_elastic_fit(self, trainer: Any) -> bool:
        return is_elastic() and trainer.state.fn == "fit"


def _check_elastic(trainer: Any) -> None:
    """Check that the options of a Trainer are valid for an elastic job.

    Raises:
        ValueError: an option is not valid.
    """
    wrong = {
        "accumulate_grad_batches": (trainer.accumulate_grad_batches, 1, "use a smaller batch_size"),
        "limit_train_batches": (trainer.limit_train_batches, 1.0, "use max_steps"),
        "overfit_batches": (trainer.overfit_batches, 0.0, "train on a Subset of the dataset"),
        "reload_dataloaders_every_n_epochs": (trainer.reload_dataloaders_every_n_epochs, 0, "omit it"),
    }
    for name, (value, usual, instead) in wrong.items():
        if value != usual:
            raise InvalidRequestError(f"Trainer({name}={value}) is not available in an elastic job: {instead}.")
    if trainer.ckpt_path is not None:
        # Lightning does not give the loop of steps the position in the data, and steps no schedules afterwards.
        raise InvalidRequestError(
            "an elastic job cannot continue from a Lightning checkpoint: omit ckpt_path=, and start the job with "
            "--checkpoint-dir DIR --resume auto."
        )
