"""`steps`: the loop of steps of an elastic training, for PyTorch."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from farandole.errors import InvalidRequestError
from farandole.torch.adasum import AdasumOptimizer
from farandole.torch.elastic import stream
from farandole.torch.elastic.checkpoint import Checkpoint
from farandole.torch.elastic.gradient_passes import TorchPasses
from farandole.torch.elastic.loader import ElasticLoader
from farandole.torch.elastic.transfer import transfer
from farandole.torch.optimizer import has_unused_gradients, is_distributed
from farandole.worker.core.basics import current
from farandole.worker.core.dtype import Average
from farandole.worker.core.retry import Gradients
from farandole.worker.elastic.adaptive_batch import AdaptiveBatch
from farandole.worker.elastic.batches import RatePolicy
from farandole.worker.elastic.checkpoint.loop_checkpoints import LoopCheckpoints
from farandole.worker.elastic.step_loop import Loop, loop_of
from farandole.worker.elastic.world_changes import is_elastic


class _Training:
    """The trained objects, by name: `worker.elastic.framework.Trained` for PyTorch."""

    def __init__(self, things: MutableMapping[str, Any], checkpoint: Checkpoint | None, may_stream: bool) -> None:
        self._things = things
        self._may_stream = may_stream
        self.checkpoints = LoopCheckpoints(checkpoint, things)
        self._optimizers: list[Any] = [thing for thing in things.values() if isinstance(thing, torch.optim.Optimizer)]
        self.reduces_once = len(self._optimizers) == 1

    def transfer(self, sources: Sequence[int], receivers: Sequence[int], *, may_stream: bool) -> stream.Stream | None:
        """Send the receivers the state, which all sources have, or begin to send it."""
        # A shadow takes part in reductions with weight zero. That is defined for averages, and for no other operation.
        may_stream = self._may_stream and may_stream and all(optimizer._op == Average for optimizer in self._optimizers)
        at_once = current().settings.elastic_state_at_once if may_stream else sys.maxsize
        return stream.begin(self._things, sources, receivers, at_once)

    def hand_over(self, gradients: Gradients | None, sources: Sequence[int], receivers: Sequence[int]) -> None:
        """Send the receivers the reduced gradients, which all sources have."""
        transfer({} if gradients is None else {"gradients": gradients}, sources, receivers)

    def has_unused_gradients(self) -> bool:
        """Return whether gradients were computed since the last step of their optimizer."""
        return any(map(has_unused_gradients, self._optimizers))

    def scale_rate(self, factor: float) -> None:
        """Multiply the learning rates, and the initial rates of schedules."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for name in ("lr", "initial_lr"):
                    if name in group:
                        group[name] *= factor


def steps(
    loader: ElasticLoader | DataLoader[Any],
    *,
    epochs: int = 1,
    rate: RatePolicy | None = None,
    batches: AdaptiveBatch | None = None,
    checkpoint: Checkpoint | None = None,
    may_stream: bool = True,
    **things: Any,
) -> Loop:
    """Iterate over the batches of a training whose workers may die, join and leave.

    A step is one round of the loop. It counts as a whole, on all workers, when `optimizer.step()` has all ranks'
    gradients. Otherwise the survivors repeat it: no step is lost, and each sample is used once in an epoch. Newcomers
    get the state of `things` between two steps; a large one while the others continue; meanwhile they take the steps of
    rank 0, with weight zero. At the end of an epoch there may be fewer samples than workers: then this worker takes the
    step with samples of others, with weight zero.

    Gradients are accumulated within a round: `backward_passes_per_step=4` is for a body that processes four parts of
    its batch before `optimizer.step()`.

    In a job with a fixed number of workers, the steps are the same, and a lost worker is an error.

    Args:
        loader: the loader of the samples; or a DataLoader, whose dataset, batch size (of each worker), shuffling,
            workers and collate function are used.
        epochs: the number of epochs of this loop, in all worlds together.
        rate: the change of the learning rate with the number of workers, such as `LinearScaling()`; by default, the
            rate does not change.
        batches: adapts the batch of all workers to the noise of the gradients, and the learning rate to the batch; then
            the loader's batch size is not used. The body may run several times in a step: see `Loop.accumulates`.
        checkpoint: checkpoints, for the case that all workers are lost; by default, those of
            `farandole run --checkpoint-dir`. With `--resume auto`, training starts from the last one.
        may_stream: whether a newcomer may take the steps of rank 0 while it gets a large state. False: the others wait,
            and the body never runs without the state.
        things: the trained objects, under any names: models, optimizers (each a `DistributedOptimizer`), schedules, and
            other objects with `state_dict` and `load_state_dict`.

    Returns:
        A loop to iterate over once. Its `stop()` ends the training after the current step, on all workers; a script may
        use `break` only if all workers do so in the same step.

    Raises:
        ValueError: an optimizer is not distributed, an object has no state, or both rate and batches are given.

    Example:
        >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        >>> loader = hvd.elastic.ElasticLoader(dataset, global_batch_size=32)
        >>> for x, y in hvd.elastic.steps(loader, epochs=2, model=model, optimizer=optimizer):
        ...     optimizer.zero_grad()
        ...     loss = F.mse_loss(model(x), y)
        ...     loss.backward()
        ...     optimizer.step()
    """
    checkpoint = checkpoint or Checkpoint.of_next_loop(current())
    _check(things)
    elastic = loader if isinstance(loader, ElasticLoader) else elastic_loader(loader)
    training = _Training(things, checkpoint, may_stream)
    optimizers = [thing for thing in things.values() if isinstance(thing, torch.optim.Optimizer)]
    return loop_of(elastic, training, epochs=epochs, rate=rate, batches=batches, passes=lambda: TorchPasses(optimizers))


def _check(things: MutableMapping[str, Any]) -> None:
    for name, thing in things.items():
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise InvalidRequestError(
                f"{name}={thing!r} has no state_dict() and load_state_dict(), by which newcomers could get it."
            )
        if isinstance(thing, torch.optim.Optimizer) and (is_elastic() or current().world.size > 1):
            _check_optimizer(name, thing)
    optimizers = sum(isinstance(thing, torch.optim.Optimizer) for thing in things.values())
    if is_elastic() and optimizers > 1 and not current().settings.elastic_keep_gradients:
        raise InvalidRequestError(
            f"with {optimizers} optimizers, gradients have to be kept: if a step were repeated, the first optimizer "
            "would step twice. Omit FARANDOLE_ELASTIC_KEEP_GRADIENTS=0."
        )


def _check_optimizer(name: str, optimizer: Any) -> None:
    if isinstance(optimizer, AdasumOptimizer):
        if not is_elastic():
            return
        raise InvalidRequestError(
            f"{name} reduces with Adasum, where each worker takes its own step: without a worker that was lost, the "
            "step cannot be repeated. Pass a DistributedOptimizer with another op."
        )
    if not is_distributed(optimizer):
        raise InvalidRequestError(
            f"{name} is a plain {type(optimizer).__name__}; pass hvd.DistributedOptimizer({name}, ...), so that "
            "the workers train one model with averaged gradients, which survive the loss of a worker."
        )


def elastic_loader(loader: Any, global_batch_size: int | None = None) -> ElasticLoader:
    """Return an ElasticLoader of a DataLoader's dataset, with its settings.

    Args:
        loader: the DataLoader; its batch size is that of each worker.
        global_batch_size: the samples of all workers together; None: the DataLoader's batch size on each worker.

    Raises:
        ValueError: it is not a DataLoader, or has its own sampler.
    """
    if not isinstance(loader, DataLoader):
        raise InvalidRequestError(
            f"steps() cannot load samples from a {type(loader).__name__}: pass hvd.elastic.ElasticLoader(dataset, "
            "batch_size=...), or a DataLoader."
        )
    if isinstance(loader.dataset, IterableDataset) and loader.batch_size is not None:
        return _like(loader, None, global_batch_size)
    shuffled = isinstance(loader.sampler, torch.utils.data.RandomSampler)
    if loader.batch_size is None or not (shuffled or isinstance(loader.sampler, torch.utils.data.SequentialSampler)):
        raise InvalidRequestError(
            "this DataLoader chooses samples in its own way, which cannot be shared among workers that come and "
            "go. Pass hvd.elastic.ElasticLoader(dataset, batch_size=...)."
        )
    return _like(loader, shuffled, global_batch_size)


def _like(loader: DataLoader[Any], shuffle: bool | None, global_batch_size: int | None) -> ElasticLoader:
    return ElasticLoader(
        loader.dataset,
        batch_size=loader.batch_size if global_batch_size is None else None,
        global_batch_size=global_batch_size,
        shuffle=shuffle,
        drop_last=loader.drop_last,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )
