"""A training with TensorFlow in a loop of steps, and its replay.

Each worker records the samples that each step has used; the replay computes the gradient of the mean over these, in one
process without farandole, and must have the same variables at the end.
"""

from __future__ import annotations

import os
import signal
from typing import Any

SAMPLES = 22


def samples_of() -> tuple[Any, Any]:
    """Return all samples: inputs and targets."""
    import numpy as np

    numbers = np.arange(SAMPLES)
    return np.sin(np.outer(numbers + 1.0, [1.0, 2.0, 3.0])), (numbers / SAMPLES)[:, None]


def make(optimizer: str) -> tuple[Any, Any]:
    """Return a model and an optimizer, the same in all processes."""
    import keras

    keras.utils.set_random_seed(7)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((3,), dtype="float64"),
            layers.Dense(5, activation="tanh", dtype="float64"),
            layers.Dense(1, dtype="float64"),
        ]
    )
    if optimizer == "adam":
        return model, keras.optimizers.Adam(0.01)
    return model, keras.optimizers.SGD(0.05, momentum=0.9)


def variables_of(model: Any, optimizer: Any) -> list[Any]:
    """Return copies of all variables."""
    return [variable.numpy() for variable in [*model.variables, *optimizer.variables]]


def train(options: dict[str, Any]) -> dict[str, Any]:
    """Train, and die at the points in the options. Run by a worker."""
    import time

    import numpy as np
    import tensorflow as tf

    import farandole.tensorflow as hvd
    from farandole.worker.core.basics import current
    from farandole.worker.elastic import world_changes

    hvd.init()
    worker = current().settings.rank
    model, optimizer = make(options.get("optimizer", "sgd"))
    if options.get("strangers", True):
        for variable in model.variables:
            variable.assign(
                variable.numpy() * (1.0 if worker == 0 else 5.0)
            )  # A worker that gets no state has wrong values.
    death = options.get("deaths", {}).get(worker)
    loop: Any = None

    def die_at(phase: str) -> None:
        if death is not None and loop is not None and (loop.step, phase) == tuple(death):
            os.kill(os.getpid(), signal.SIGKILL)

    inputs, targets = samples_of()

    def load(indices: object) -> object:
        return tf.gather(inputs, indices), tf.gather(targets, indices)

    source = {"load": load, "source": SAMPLES} if options.get("pipeline") else {"source": (inputs, targets)}
    loader = hvd.elastic.ElasticLoader(**source, **options.get("batch", {"global_batch_size": 6}))
    batches = hvd.elastic.AdaptiveBatch(**options["adaptive"]) if "adaptive" in options else None
    loop = hvd.elastic.steps(
        loader,
        epochs=options.get("epochs", 2),
        rate=options.get("rate"),
        batches=batches,
        model=model,
        optimizer=optimizer,
    )

    def train_on(x: object, y: object) -> object:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        tf.numpy_function(lambda: die_at("backward"), [], [])
        gradients = hvd.elastic.reduce_gradients(gradients, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    train_on = tf.function(train_on, reduce_retracing=True) if options.get("function", True) else train_on
    used: dict[int, list[int]] = {}
    rates: dict[int, float] = {}
    _write_down_steps(loop, used, rates, optimizer)

    lagging = _Lagging(options["lag"], worker, loop) if "lag" in options else None

    def will_have(size: int) -> bool:
        change = world_changes.pending_change()
        return change is not None and hvd.size() + change.added >= size

    def wait(step: int, size: int) -> None:
        while loop.step == step and hvd.size() < size and not will_have(size):
            time.sleep(0.01)

    for x, y in loop:
        for step, size in options.get("waits", {}).items():
            wait(step, size)
        die_at("begin")
        if options.get("calls"):
            value = float(hvd.allreduce(np.array([float(loop.step)]), name="call")[0])
            assert value == loop.step
        if options.get("stop") == (worker, loop.step):
            loop.stop()
        train_on(x, y)
        die_at("after step")
    result = {
        "step": loop.step,
        "size": hvd.size(),
        "used": used,
        "rates": rates,
        "adaptation": None if loop._adaptation is None else loop._adaptation.value,
        "variables": variables_of(model, optimizer),
        "handed over": lagging is not None and lagging.was_handed_over,
    }
    hvd.shutdown()
    return result


class _Lagging:
    """In one step, all workers except one get the gradients, and then a worker dies."""

    def __init__(self, options: dict[str, Any], worker: int, loop: Any) -> None:
        from farandole.worker.gradients.last_reduced import LastReduced
        from farandole.worker.gradients.reducer import Reducer

        self._options, self._worker, self._loop = options, worker, loop
        self._is_over = self.was_handed_over = False
        self._run_out, self._load = Reducer._run_out, LastReduced.load_state_dict
        Reducer._run_out = lambda reducer: self._wait(reducer)
        LastReduced.load_state_dict = lambda reduced, state: self._take(reduced, state)

    def _wait(self, reducer: Any) -> Any:
        import time
        from pathlib import Path

        from farandole.errors import WorkerLostError
        from farandole.worker.core.basics import current

        error = self._run_out(reducer)
        if self._loop.step != self._options["step"] or self._is_over:
            return error
        self._is_over = True
        got = Path(self._options["got"])
        if self._worker == self._options["dies"]:
            while not got.exists():
                time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGKILL)
        if self._worker != self._options["lags"]:
            got.touch()
            return error
        if error is not None:
            return error  # It has really lagged: the other one was dead before this one had everything.
        while current().engine.cause() is None:
            time.sleep(0.005)
        for bundle in reducer._all_bundles():
            bundle.broken = True
            for entry in bundle.entries:
                entry.gradient = None
                if entry.in_view is not None:
                    entry.in_view.fill(float("nan"))
        return WorkerLostError("the test wants it")

    def _take(self, reduced: Any, state: Any) -> None:
        self._load(reduced, state)
        self.was_handed_over = True


def _write_down_steps(loop: Any, used: dict[int, list[int]], rates: dict[int, float], optimizer: Any) -> None:
    """Record the samples that each step of a loop uses, and its learning rate, when the step counts."""
    loader = loop._loader
    commit = loader.commit

    def write_down(batch: Any, lost: Any = ()) -> None:
        shares = [share for rank, share in enumerate(batch.shares) if rank not in lost]
        used[loop.step] = [index for share in shares for index in loader.ledger.indices(share)]
        rates[loop.step] = float(optimizer.learning_rate.numpy())
        commit(batch, lost)

    loader.commit = write_down


def replay(steps: dict[int, list[int]], options: dict[str, Any], rates: dict[int, float]) -> list[Any]:
    """Return the variables after these steps, taken by one process."""
    import tensorflow as tf

    model, optimizer = make(options.get("optimizer", "sgd"))
    optimizer.build(model.trainable_variables)
    inputs, targets = samples_of()
    for number in sorted(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs[steps[number]]) - targets[steps[number]]) ** 2)
        optimizer.learning_rate = rates[number]
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return variables_of(model, optimizer)


def check(results: list[dict[str, Any]], options: dict[str, Any], alone: Any) -> None:
    """Compare the workers' records with each other and with the replay, which the worker `alone` makes."""
    import numpy as np

    steps: dict[int, list[int]] = {}
    rates: dict[int, float] = {}
    for result in results:
        rates |= result["rates"]
        for step, used in result["used"].items():
            assert steps.setdefault(step, used) == used
        for mine, first in zip(result["variables"], results[0]["variables"], strict=True):
            np.testing.assert_array_equal(mine, first)
    assert sorted(steps) == list(range(results[0]["step"]))
    used = sorted(index for indices in steps.values() for index in indices)
    assert used == sorted(list(range(SAMPLES)) * options.get("epochs", 2))
    alone.send(replay, (steps, options, rates))
    for mine, theirs in zip(results[0]["variables"], alone.receive(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9)
