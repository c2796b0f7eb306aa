"""Trainings by `model.fit`: the digits, and a model of 25 million parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.base import Call

DIGITS, LARGE = "digits", "25 M parameters"


@dataclass(frozen=True)
class Training:
    """A training of dense layers.

    Attributes:
        widths: of the input, of all layers but the last, and of the output.
        steps: in an epoch.
        epochs: in one call of `fit`, which takes a while to begin and to end.
    """

    widths: tuple[int, ...]
    steps: int
    epochs: int

    def make_model(self, keras: Any) -> Any:
        """Return the model, as Keras 3 or tf_keras makes it."""
        *hidden, outputs = self.widths[1:]
        layers = [keras.layers.Dense(width, activation="relu") for width in hidden]
        return keras.Sequential([keras.Input((self.widths[0],)), *layers, keras.layers.Dense(outputs)])

    def make_fit(self, keras: Any, optimizer: Callable[[], Any], batch: int) -> Call:
        """Return a call of `fit` that counts as so many as it makes steps, each of a batch of that size.

        The numbers are drawn: what is learnt is not measured, and the digits' own are as many.
        """
        import numpy

        keras.utils.set_random_seed(0)
        model = self.make_model(keras)
        model.compile(optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        samples = batch * self.steps
        x = numpy.random.default_rng(1).random((samples, self.widths[0]), dtype=numpy.float32)
        y = numpy.arange(samples) % self.widths[-1]

        def call() -> None:
            model.fit(x, y, batch_size=batch, epochs=self.epochs, shuffle=False, verbose=0)

        call.times = self.steps * self.epochs  # type: ignore[attr-defined]
        call.kept = model  # type: ignore[attr-defined]
        return call


TRAININGS = {
    DIGITS: Training((64, 128, 64, 10), steps=24, epochs=10),
    LARGE: Training((2048,) * 7 + (10,), steps=6, epochs=1),
}


def peak_memory(call: Call) -> float:
    """Make the call and return the most memory that this process had meanwhile, in bytes."""
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    call()
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
