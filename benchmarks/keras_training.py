"""Trainings by `model.fit`: the digits, and a model of 25 million parameters."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.base import Call

DIGITS, LARGE = "digits", "25 M parameters"


@dataclass(frozen=True)
class Training:
    """A training of dense layers.

    Attributes:
        widths: the widths of the input, of all layers but the last, and of the output.
        steps: the number of steps in an epoch.
        epochs: the number of epochs in one call of `fit`, which takes a while to begin and to end.
    """

    widths: tuple[int, ...]
    steps: int
    epochs: int

    def make_model(self, keras: Any) -> Any:
        """Return the model, as Keras 3 or tf_keras makes it."""
        *hidden, outputs = self.widths[1:]
        layers = [keras.layers.Dense(width, activation="relu") for width in hidden]
        return keras.Sequential([keras.Input((self.widths[0],)), *layers, keras.layers.Dense(outputs)])

    def make_fit(self, keras: Any, optimizer: Callable[[], Any], batch: int, meet: Callable[[], Any]) -> Call:
        """Return a call of `fit`, which counts as as many calls as it makes steps, each with a batch of `batch`
        samples.

        It times itself, within its epochs: TensorFlow alone adds 0.6 s at the end of some calls of `fit`. The numbers
        are drawn: what is learnt is not measured, and the digits' own are as many.

        Args:
            keras: Keras 3 or tf_keras.
            optimizer: a function that makes the optimizer.
            batch: the size of a batch.
            meet: a function that waits for all workers that are timed together; called before each epoch.
        """
        import numpy

        keras.utils.set_random_seed(0)
        model = self.make_model(keras)
        model.compile(optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        samples = batch * self.steps
        x = numpy.random.default_rng(1).random((samples, self.widths[0]), dtype=numpy.float32)
        y = numpy.arange(samples) % self.widths[-1]
        clock = make_clock(keras, meet)

        def call() -> float:
            clock.seconds = 0.0
            model.fit(x, y, batch_size=batch, epochs=self.epochs, shuffle=False, verbose=0, callbacks=[clock])
            return clock.seconds  # type: ignore[no-any-return]

        call.times = self.steps * self.epochs  # type: ignore[attr-defined]
        call.times_itself = True  # type: ignore[attr-defined]
        call.kept = model  # type: ignore[attr-defined]
        return call


TRAININGS = {
    DIGITS: Training((64, 128, 64, 10), steps=24, epochs=10),
    LARGE: Training((2048,) * 7 + (10,), steps=6, epochs=1),
}


def make_clock(keras: Any, meet: Callable[[], Any]) -> Any:
    """Return a callback that adds up the seconds of epochs in `seconds`, each from when all workers have met."""

    class EpochClock(keras.callbacks.Callback):  # type: ignore[misc]
        seconds = 0.0
        _begun = 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            meet()
            self._begun = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seconds += time.perf_counter() - self._begun

    return EpochClock()


def peak_memory(call: Call) -> float:
    """Make the call and return this process's peak of memory meanwhile, in bytes."""
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    call()
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
