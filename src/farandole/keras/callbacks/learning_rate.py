"""Learning rates that change with each epoch or batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farandole.errors import InvalidRequestError
from farandole.keras import sessions
from farandole.keras.callbacks.base import Callback
from farandole.worker.core.basics import rank, size

# The placeholder for an omitted rate; no rate is below 0.
OF_THE_OPTIMIZER = -1.0


class LearningRateScheduleCallback(Callback):
    """Sets the learning rate to `initial_lr` times a multiplier from one epoch to another.

    Example:
        >>> schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.1 ** (epoch // 30))
    """

    def __init__(
        self,
        initial_lr: float = OF_THE_OPTIMIZER,
        multiplier: float | Callable[[float], float] = 1.0,
        start_epoch: int = 0,
        end_epoch: float | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Create the callback.

        Args:
            initial_lr: the rate when the training begins; if omitted, as in older scripts, the optimizer's.
            multiplier: a function of the epoch; or a number m, for m to the power of the epochs since `start_epoch`.
            start_epoch: the first epoch whose rate this sets.
            end_epoch: the first later epoch whose rate this does not set; None: no limit.
            staircase: whether the rate changes with the epoch; else with each batch, and the multiplier gets epochs
                with a fraction.
            momentum_correction: whether SGD's momentum, which contains the rate of earlier steps, is rescaled when the
                rate changes.
            steps_per_epoch: the number of steps in an epoch; required without `staircase` if Keras does not know it.

        Raises:
            ValueError: `initial_lr` is missing.
        """
        super().__init__()
        if initial_lr is None:
            raise InvalidRequestError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.multiplier = multiplier if callable(multiplier) else _exponential(multiplier, start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Find out the number of steps in an epoch, if the rate changes with each batch; and the rate, if it was
        omitted.
        """
        if self.initial_lr == OF_THE_OPTIMIZER:
            self.initial_lr = self._rate()
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._steps_of_keras()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Record the epoch."""
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate."""
        if self.current_epoch < self.start_epoch or (
            self.end_epoch is not None and self.current_epoch >= self.end_epoch
        ):
            return
        if not self.staircase:
            assert self.steps_per_epoch
            self._set_rate(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._set_rate(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the rate to the logs."""
        if logs is not None:
            logs["lr"] = self._rate()

    def _rate(self) -> float:
        rate = self.model.optimizer.learning_rate
        if sessions.is_on():
            return float(sessions.read(rate))
        # A variable of an older Keras 3 cannot be given to float(); an array of JAX, which schedules return, has no
        # numpy().
        return float(rate.numpy() if hasattr(rate, "numpy") else rate)

    def _set_rate(self, epoch: float) -> None:
        before, rate = self._rate(), self.initial_lr * self.multiplier(epoch)
        optimizer = self.model.optimizer
        optimizer.learning_rate = rate
        # In a compiled function, momentum is a constant, so that a change of it would have no effect. Instead, what it
        # is multiplied by is scaled, with the same result.
        if self.momentum_correction and before and rate != before:
            gathered = _gathered(optimizer)
            if sessions.is_on():  # All at once: a session compiles new operations.
                sessions.write_all(gathered, [each * (rate / before) for each in sessions.read_all(gathered)])
            else:
                for each in gathered:
                    each.assign(each * (rate / before))

    def _steps_of_keras(self) -> int:
        params = self.params or {}
        if params.get("steps"):
            return int(params["steps"])
        if params.get("samples") and params.get("batch_size"):  # In a session, Keras 2 gives only these two.
            return -(-int(params["samples"]) // int(params["batch_size"]))
        raise InvalidRequestError(
            "Could not autodetect the number of steps per epoch, as the dataset does not know its length. Pass "
            f"steps_per_epoch to {type(self).__name__}()."
        )


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Increases the learning rate from `initial_lr / hvd.size()` to `initial_lr` in the first epochs.

    The method is that of Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.2.

    Example:
        >>> warmup = hvd.callbacks.LearningRateWarmupCallback(0.1 * hvd.size(), warmup_epochs=5)
    """

    def __init__(
        self,
        initial_lr: float = OF_THE_OPTIMIZER,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """Create the callback.

        Args:
            initial_lr: the rate after the warm-up; if omitted, as in older scripts, the optimizer's.
            warmup_epochs: the length of the warm-up in epochs.
            momentum_correction: the same as for `LearningRateScheduleCallback`.
            steps_per_epoch: the same as for `LearningRateScheduleCallback`.
            verbose: 1: rank 0 prints a message when the warm-up is over.

        Raises:
            ValueError: `initial_lr` is missing.
        """
        self.verbose = verbose
        self.warmup_epochs = warmup_epochs
        super().__init__(
            initial_lr,
            self._warmed_up,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the rate to the logs; after the warm-up, print a message."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and rank() == 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}.")

    def _warmed_up(self, epoch: float) -> float:
        assert self.steps_per_epoch
        # One batch more is counted, so that the factors at the ends of epochs are round numbers.
        done = min((epoch + 1.0 / self.steps_per_epoch) / self.warmup_epochs, 1.0)
        return (done * (size() - 1) + 1) / size()


def _exponential(base: float, start: int) -> Callable[[float], float]:
    return lambda epoch: float(base ** (epoch - start))


def _gathered(optimizer: Any) -> list[Any]:
    """Return an optimizer's momentum variables, if it has momentum."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if hasattr(inner, "get_slot_names"):  # The older optimizers of Keras 2.
        return [weight for weight in inner.weights if weight.name.partition(":")[0].endswith("/momentum")]
    if not getattr(inner, "momentum", None):
        return []
    slots = getattr(inner, "momentums", None) or getattr(inner, "_momentums", None) or []
    return [slot for slot in slots if slot is not None]
