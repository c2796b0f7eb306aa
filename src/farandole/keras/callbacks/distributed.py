"""One callback for everything that a training on several workers needs."""

from __future__ import annotations

from typing import Any

from farandole.keras.callbacks.base import Callback
from farandole.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from farandole.keras.callbacks.metrics import MetricAverageCallback
from farandole.worker.collectives.objects import allgather_object
from farandole.worker.core.basics import rank


class Distributed(Callback):
    """Broadcasts rank 0's variables, averages metrics, and runs some callbacks on rank 0 only.

    Put it first: callbacks after it, such as `EarlyStopping`, run on all workers, and get the averages, so that they
    make the same decisions. Those that are passed to it run on rank 0. If one of these stops the training, or one
    before it at the end of an epoch, it ends on all workers after the epoch. A callback that stops within an epoch,
    such as `TerminateOnNaN`, must be passed to it: otherwise other ranks would wait for the rank that has stopped.

    Example:
        >>> save = keras.callbacks.ModelCheckpoint("digits.keras", monitor="val_loss")
        >>> history = model.fit(x, y, callbacks=[hvd.callbacks.Distributed(save)])
    """

    def __init__(self, *rank_0: Any, root_rank: int = 0, weighted: bool = False) -> None:
        """Create the callback.

        Args:
            rank_0: callbacks that only rank 0 runs, such as checkpoints and logs.
            root_rank: the rank whose variables are broadcast.
            weighted: whether a worker's metrics are weighted by its number of samples; else all workers have equal
                weight.
        """
        super().__init__()
        everywhere = [BroadcastGlobalVariablesCallback(root_rank), MetricAverageCallback(weighted=weighted)]
        self._callbacks: list[Any] = [*everywhere, *(rank_0 if rank() == 0 else ())]
        self._stops = False

    def set_params(self, params: Any) -> None:
        """Receive Keras' parameters, and turn its progress bar off on ranks other than 0."""
        if params and rank() != 0:
            # The progress bar, which comes after this, reads the same dictionary.
            params["verbose"] = 0
        super().set_params(params)
        self._tell("set_params", params)

    def set_model(self, model: Any) -> None:
        """Receive the model from Keras."""
        super().set_model(model)
        self._tell("set_model", model)

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast the variables."""
        self._stops = False
        self._tell("on_train_begin", logs)

    def on_train_end(self, logs: Any = None) -> None:
        self._tell("on_train_end", logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._tell("on_epoch_begin", epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._tell("on_epoch_end", epoch, logs)
        # A callback before this one may have decided by the metrics of its rank.
        if any(allgather_object(self._stops or self._is_stopped(), name="keras.stop")):
            self.model.stop_training = True

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._tell("on_train_batch_begin", batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._tell("on_train_batch_end", batch, logs)

    def on_test_begin(self, logs: Any = None) -> None:
        self._tell("on_test_begin", logs)

    def on_test_end(self, logs: Any = None) -> None:
        self._tell("on_test_end", logs)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._tell("on_test_batch_begin", batch, logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._tell("on_test_batch_end", batch, logs)

    def _tell(self, event: str, *arguments: Any) -> None:
        was_stopped = self._is_stopped()
        for callback in self._callbacks:
            getattr(callback, event)(*arguments)
        if self._is_stopped() and not was_stopped:
            # The other ranks know nothing of it, and would wait in their next step: all stop after this epoch.
            self._stops, self.model.stop_training = True, False

    def _is_stopped(self) -> bool:
        return bool(getattr(self.model, "stop_training", False))
