"""`fit` in an elastic job: the Trainer's batches come from a loop of `hvd.elastic.steps`.

Each request for a batch ends one step of the loop and begins the next one. In between, the loop may enter another
world. A newcomer runs the Trainer's start alone, and gets the state of the training, and the progress of the Trainer,
when it requests its first batch.

The number of steps of an epoch may change with each step, because the samples of a lost worker are read again. So
before and after each step, the Trainer is told whether it is the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import farandole.torch as hvd
from farandole.errors import InvalidRequestError
from farandole.torch.elastic.steps import elastic_loader, steps
from farandole.worker.core.basics import current
from farandole.worker.elastic.batches import RatePolicy
from farandole.worker.elastic.ledger import UNBOUNDED

_WITHOUT_END = 1 << 40


class ElasticBatches:
    """The training batches of a Trainer, in an elastic job. It is iterated over once in each epoch.

    Args:
        strategy: the `FarandoleStrategy`.
        trainer: the Trainer.
        dataloader: the DataLoader whose dataset, batch size and settings are used.
        global_batch_size: the samples of a step on all workers together; None: the DataLoader's batch size for each
            worker.
        rate: the change of the learning rate with the number of workers.

    Raises:
        ValueError: the dataset has no length, or the DataLoader has its own sampler.
    """

    def __init__(
        self, strategy: Any, trainer: Any, dataloader: Any, global_batch_size: int | None, rate: RatePolicy | None
    ) -> None:
        if not current().settings.elastic_keep_gradients:
            raise InvalidRequestError(
                "with Lightning, gradients have to be kept: omit FARANDOLE_ELASTIC_KEEP_GRADIENTS=0."
            )
        self._loader = elastic_loader(dataloader, global_batch_size)
        if self._loader.ledger.samples == UNBOUNDED:
            raise InvalidRequestError("in an elastic job, Lightning needs a dataset with a length.")
        self._strategy, self._trainer, self._rate = strategy, trainer, rate
        self._loop: Any = None
        self._rounds: Iterator[Any] | None = None

    def __len__(self) -> int:
        """Return the number of steps that this epoch still has in the present world."""
        return self._steps_in(self._loader.ledger.left)

    def __iter__(self) -> Iterator[Any]:
        """Return the remaining batches, of this epoch and of later ones."""
        return self

    def __next__(self) -> Any:
        """End the step, and return the batch of the next one."""
        if self._rounds is None:
            self._loop = self._make_loop()
            self._rounds = iter(self._loop)
        # By itself, Lightning would end the epoch after as many batches as it had at its beginning.
        self._trainer.fit_loop._data_fetcher.length = None
        try:
            batch = next(self._rounds)
        except StopIteration:
            # The others have ended the training: this worker has joined at its end.
            self._trainer.should_stop = self._strategy.is_alone = True
            raise
        finally:
            self._strategy.set_world_ranks()
        return batch

    def begin(self) -> None:
        """Make the Trainer validate after the last step of each epoch."""
        if self._trainer.val_check_interval == 1.0:
            self._trainer.val_check_batch = float("inf")

    def measure(self) -> None:
        """Set the Trainer's number of steps of the epoch, as it is known now."""
        epoch_loop = self._trainer.fit_loop.epoch_loop
        left = self._steps_in(self._loop.left_after_step)
        self._trainer.fit_loop.max_batches = epoch_loop.batch_progress.current.ready + left
        epoch_loop.batch_progress.is_last_batch = left == 0

    def end(self) -> None:
        """Finish the last step together with the other workers."""
        if self._rounds is None:
            return
        if self._loop.left_after_step == 0:
            for _ in self._rounds:
                break
        self._rounds.close()  # type: ignore[attr-defined]
        self._rounds = None
        self._loader.close()

    def _steps_in(self, samples: int) -> int:
        full, rest = divmod(samples, sum(self._loader.counts(hvd.size())))
        return full + (rest > 0 and not self._loader.ledger.drop_last)

    def _make_loop(self) -> Any:
        strategy, trainer = self._strategy, self._trainer
        schedules = [config.scheduler for config in strategy.lr_scheduler_configs]
        things = {
            "model": strategy.lightning_module,
            **{f"optimizer_{i}": each for i, each in enumerate(strategy.optimizers)},
            **{f"schedule_{i}": each for i, each in enumerate(schedules)},
            "trainer": TrainerProgress(trainer),
        }
        epochs = trainer.max_epochs
        epochs = _WITHOUT_END if epochs in (None, -1) else epochs - trainer.current_epoch
        return steps(self._loader, epochs=epochs, rate=self._rate, may_stream=False, **things)


class TrainerProgress:
    """The progress of a Trainer and the state of its callbacks, for newcomers and checkpoints.

    Args:
        trainer: the Trainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of the loops, and the state of the callbacks."""
        loops = self._trainer.fit_loop.state_dict()
        loops["state_dict"] = {}  # The loop of steps knows the position in the data.
        callbacks = {each.state_key: each.state_dict() for each in self._trainer.callbacks}
        return {"loops": loops, "callbacks": {key: state for key, state in callbacks.items() if state}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Adopt the progress of another Trainer, in the middle of `fit`."""
        _follow(self._trainer.fit_loop, state["loops"], "")
        for callback in self._trainer.callbacks:
            if callback.state_key in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][callback.state_key])


def _follow(loop: Any, state: dict[str, Any], prefix: str) -> None:
    # The loop's load_state_dict would restart it, as if from a checkpoint.
    loop._load_from_state_dict(state, prefix)
    for name, part in vars(loop).items():
        if hasattr(part, "_load_from_state_dict") and f"{prefix}{name}.state_dict" in state:
            _follow(part, state, f"{prefix}{name}.")
