"""Trainings with Keras in a world of two processes, with each backend: what two workers do is what one would do."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import World


def data() -> tuple[Any, Any]:
    """Return samples and targets of a small task, for all workers together."""
    import numpy as np

    x = np.sin(np.outer(np.arange(32) + 1.0, [1.0, 2.0, 3.0])).astype("float32")
    return x, (x @ np.array([[1.0], [-2.0], [0.5]]) + 0.1).astype("float32")


def model(policy: str = "float32") -> Any:
    """Return a small model, the same in all processes."""
    import keras

    keras.utils.set_random_seed(7)
    keras.mixed_precision.set_global_policy(policy)
    try:
        layers = keras.layers
        return keras.Sequential([layers.Input((3,)), layers.Dense(4, activation="tanh"), layers.Dense(1)])
    finally:
        keras.mixed_precision.set_global_policy("float32")


def plain_training(optimizer: Any, steps: int, accumulate: int = 1, policy: str = "float32") -> list[Any]:
    """Return the weights after some steps of 8 samples each, taken by one process."""
    import numpy as np

    assert not hasattr(optimizer, "_farandole")
    x, y = data()
    alone = model(policy)
    alone.compile(optimizer, "mse")
    alone.optimizer.initial_scale = 8.0  # Of the loss, in mixed precision: nothing gets too large.
    for step in range(steps):
        rows = [(step * accumulate * 8 + row) % 32 for row in range(8 * accumulate)]
        alone.train_on_batch(x[rows], y[rows])
    return [np.array(weight) for weight in alone.get_weights()]


def check_alike(mine: list[Any], expected: list[Any], atol: float = 2e-6) -> str:
    """Compare weights, and return their digest."""
    import hashlib

    import numpy as np

    for weight, other in zip(mine, expected, strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-4, atol=atol)
    return hashlib.sha256(b"".join(np.ascontiguousarray(weight).tobytes() for weight in mine)).hexdigest()


def same_everywhere(results: list[Any]) -> None:
    assert all(result == results[0] for result in results)


def test_fit_of_two_workers_is_that_of_one_with_their_samples_in_one_batch(world: World) -> None:
    def run(eagerly: bool, momentum: float) -> tuple[str, float]:
        import keras

        import farandole.keras as hvd

        x, y = data()
        together = model()
        if hvd.rank() == 1:
            for weight in together.weights:
                weight.assign(weight.numpy() + 1)  # The callback makes that good.
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=momentum))
        assert type(optimizer).__name__ == "SGD" and isinstance(optimizer, keras.optimizers.SGD)
        together.compile(optimizer, "mse", metrics=["mae"], run_eagerly=eagerly)
        # In each step the workers have the rows that one process would have: 4 and 4 of 8.
        rows = [row for row in range(32) if row % 8 // 4 == hvd.rank()]
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
        history = together.fit(x[rows], y[rows], batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
        expected = plain_training(keras.optimizers.SGD(0.1, momentum=momentum), 8)
        return check_alike(together.get_weights(), expected), history.history["mae"]

    for eagerly, momentum in ((False, 0.9), (True, 0.0)):
        same_everywhere(world.run(run, eagerly, momentum))


def test_the_state_is_copied_and_the_given_optimizer_left_alone(world: World) -> None:
    def run() -> str:
        import keras
        import numpy as np

        import farandole.keras as hvd

        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
        one = model()
        plain = keras.optimizers.Adam(schedule)
        one.compile(plain, "mse")
        x, y = data()
        one.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False)
        before = [np.array(variable) for variable in plain.variables]
        distributed = hvd.DistributedOptimizer(plain)
        assert int(distributed.iterations.numpy()) == int(plain.iterations.numpy()) == 4
        assert float(distributed.lr) == float(plain.learning_rate)
        for mine, theirs in zip(distributed.variables, before, strict=True):
            np.testing.assert_array_equal(np.array(mine), theirs)
        gradients = [keras.ops.full(weight.shape, 1.0 + hvd.rank()) for weight in one.trainable_weights]
        distributed.apply_gradients(zip(gradients, one.trainable_weights, strict=True))
        for mine, theirs in zip(plain.variables, before, strict=True):
            np.testing.assert_array_equal(np.array(mine), theirs)
        assert int(distributed.iterations.numpy()) == 5
        return check_alike(one.get_weights(), one.get_weights())

    same_everywhere(world.run(run))


def test_gradients_of_several_passes_are_reduced_once(world: World) -> None:
    def run(way: str) -> tuple[str, int]:
        import functools

        import keras

        import farandole.keras as hvd

        kind = functools.partial(keras.optimizers.SGD, momentum=0.9)
        if way == "keras":
            optimizer = hvd.DistributedOptimizer(kind(0.1, gradient_accumulation_steps=2))
        else:
            average = way == "average"
            # The sum over two passes of half the gradient is the mean of them.
            optimizer = hvd.DistributedOptimizer(
                kind(0.1), backward_passes_per_step=2, average_aggregated_gradients=average
            )
        x, y = data()
        together = model()
        together.compile(optimizer, "mse", loss_weights=0.5 if way == "sum" else None)
        before = hvd.stats()["operations"]["allreduce"]["requests"]
        for step in range(4):
            rows = [step * 8 + row for row in range(8) if row // 4 == hvd.rank()]
            together.train_on_batch(x[rows], y[rows])
        sent = hvd.stats()["operations"]["allreduce"]["requests"] - before
        return check_alike(together.get_weights(), plain_training(kind(0.1), 2, accumulate=2), atol=1e-4), sent

    for way in ("keras", "average", "sum"):
        results = world.run(run, way)
        same_everywhere(results)
        assert results[0][1] == 2 * 4  # Two steps of four gradients.


def test_one_rank_without_finite_gradients_lets_all_skip_the_step(world: World) -> None:
    def run(inside: bool) -> str:
        import keras
        import numpy as np

        import farandole.keras as hvd

        plain = keras.optimizers.SGD(0.1)
        scaling = keras.optimizers.LossScaleOptimizer
        if inside:
            optimizer = scaling(hvd.DistributedOptimizer(plain), initial_scale=4.0)
        else:
            optimizer = hvd.DistributedOptimizer(scaling(plain, initial_scale=4.0))
        assert isinstance(optimizer, scaling) and type(optimizer).__name__ == "LossScaleOptimizer"
        together = model()
        together.compile(optimizer, "mse")
        x, y = data()
        start = together.get_weights()
        mine = slice(4 * hvd.rank(), 4 * hvd.rank() + 4)
        together.train_on_batch(x[mine] * (np.inf if hvd.rank() == 0 else 1), y[mine])
        for weight, before in zip(together.get_weights(), start, strict=True):
            np.testing.assert_array_equal(weight, before)
        assert float(np.array(optimizer.dynamic_scale)) == 2.0
        together.train_on_batch(x[mine], y[mine])
        return check_alike(together.get_weights(), plain_training(keras.optimizers.SGD(0.1), 1))

    for inside in (True, False):
        same_everywhere(world.run(run, inside))


def test_mixed_precision_in_fit(world: World) -> None:
    def run() -> str:
        import keras

        import farandole.keras as hvd

        together = model("mixed_float16")
        x, y = data()
        together.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
        assert isinstance(together.optimizer, keras.optimizers.LossScaleOptimizer)
        together.optimizer.initial_scale = 8.0
        rows = [row for row in range(32) if row % 8 // 4 == hvd.rank()]
        together.fit(x[rows], y[rows], batch_size=4, epochs=2, shuffle=False, verbose=0)
        expected = plain_training(keras.optimizers.SGD(0.05), 8, policy="mixed_float16")
        return check_alike(together.get_weights(), expected, atol=3e-3)

    same_everywhere(world.run(run))


def test_a_saved_model_is_any_keras_own(world: World, tmp_path: Any) -> None:
    def run(folder: str) -> str:
        import json
        import os
        import pickle
        import zipfile

        import keras
        import numpy as np

        import farandole.keras as hvd

        x, y = data()
        together = model()
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), backward_passes_per_step=1)
        together.compile(optimizer, "mse")
        together.fit(x, y, batch_size=8, verbose=0)
        config = optimizer.get_config()
        for copy in (optimizer.from_config(dict(config)), type(optimizer).from_config(dict(config))):
            assert copy.get_config() == config and hasattr(copy, "_farandole")
        travelled = pickle.loads(pickle.dumps(hvd.DistributedOptimizer(keras.optimizers.Adam(0.02), op=hvd.Sum)))
        assert travelled._farandole.options.op == hvd.Sum and float(travelled.learning_rate.numpy()) == pytest.approx(
            0.02
        )
        os.mkdir(f"{folder}/{hvd.rank()}")  # Older versions of Keras write more beside the file.
        path = f"{folder}/{hvd.rank()}/model.keras"
        together.save(path)
        saved = json.loads(zipfile.ZipFile(path).read("config.json"))["compile_config"]["optimizer"]
        assert (saved["module"], saved["class_name"], saved["registered_name"]) == ("keras.optimizers", "Adam", None)
        plain = keras.models.load_model(path)
        assert not hasattr(plain.optimizer, "_farandole")
        loaded = hvd.load_model(path)
        assert hasattr(loaded.optimizer, "_farandole")

        class Slow(keras.optimizers.SGD):
            """An optimizer that Keras does not have."""

        own = model()
        own.compile(hvd.DistributedOptimizer(Slow(0.01)), "mse")
        own.fit(x, y, batch_size=8, verbose=0)
        own_path = f"{folder}/{hvd.rank()}/own.keras"
        own.save(own_path)
        again = hvd.load_model(own_path, custom_optimizers=[Slow], legacy_opts=True)
        assert isinstance(again.optimizer, Slow) and hasattr(again.optimizer, "_farandole")
        for each in (plain, loaded):
            assert len(each.optimizer.variables) == len(optimizer.variables)
            for mine, theirs in zip(each.optimizer.variables, optimizer.variables, strict=True):
                np.testing.assert_array_equal(np.array(mine), np.array(theirs))
        before = hvd.stats()["operations"]["allreduce"]["requests"]
        loaded.train_on_batch(x[:8] * (1 + hvd.rank()), y[:8])
        assert hvd.stats()["operations"]["allreduce"]["requests"] == before + 4
        return check_alike(loaded.get_weights(), loaded.get_weights())

    same_everywhere(world.run(run, str(tmp_path)))


def test_values_of_python_numpy_and_the_backend(world: World) -> None:
    def run() -> None:
        import keras
        import numpy as np

        import farandole.keras as hvd

        rank = hvd.rank()
        assert float(hvd.allreduce(1.0 + rank)) == 1.5
        assert float(hvd.allreduce(1.0 + rank, average=False)) == 3.0
        assert float(hvd.allreduce(1.0 + rank, op=hvd.Max, prescale_factor=2.0)) == 4.0
        rows = hvd.allgather(np.full((1 + rank, 2), rank, "float32"), name="rows")
        assert keras.ops.is_tensor(rows) and keras.ops.convert_to_numpy(rows).tolist() == [[0, 0], [1, 1], [1, 1]]
        value = keras.ops.convert_to_tensor(np.array([rank, 5], "int32"))
        assert keras.ops.convert_to_numpy(hvd.broadcast(value, 1)).tolist() == [1, 5]
        variable = keras.Variable([rank, 7.0])
        assert keras.ops.convert_to_numpy(hvd.broadcast(variable, 1)).tolist() == [1, 7]
        scattered = hvd.reducescatter(np.array([1.0, 3.0], "float32"), op=hvd.Sum)
        assert keras.ops.convert_to_numpy(scattered).tolist() == [[2.0], [6.0]][rank]
        assert hvd.broadcast_object({"rank": rank}) == {"rank": 0}

    world.run(run)


def test_wrong_ways_are_answered_at_once(world: World) -> None:
    def run() -> None:
        import os

        import keras
        import pytest

        import farandole.keras as hvd

        sgd = keras.optimizers.SGD(0.1)
        with pytest.raises(ValueError, match="only supports Average, Sum and Adasum"):
            hvd.DistributedOptimizer(sgd, op=hvd.Max)
        with pytest.raises(ValueError, match="DistributedOptimizer already"):
            hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd))
        with pytest.raises(ValueError, match=r"an optimizer of Keras, got a name.*keras\.optimizers\.get\('adam'\)"):
            hvd.DistributedOptimizer("adam")
        with pytest.raises(ValueError, match="an optimizer of Keras, got type int"):
            hvd.DistributedOptimizer(1)
        with pytest.raises(ValueError, match="op != Average"):
            hvd.DistributedOptimizer(sgd, op=hvd.Sum, gradient_predivide_factor=2.0)
        with pytest.raises(ValueError, match="omit one of them"):
            accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
            hvd.DistributedOptimizer(accumulating, backward_passes_per_step=2)
        with pytest.raises(ValueError, match="Layer type"):
            hvd.PartialDistributedOptimizer(sgd, local_layers=["dense"])
        os.environ["TF_CONFIG"] = "{}"
        try:
            with pytest.warns(RuntimeWarning, match="TF_CONFIG is set"):
                hvd.DistributedOptimizer(sgd)
        finally:
            del os.environ["TF_CONFIG"]
        with pytest.raises(RuntimeError, match="BroadcastGlobalVariablesCallback"):
            hvd.broadcast_global_variables(0)
        one = model()
        one.compile(hvd.DistributedOptimizer(sgd), "mse")
        x, y = data()
        with pytest.raises(ValueError, match=r"different numbers of steps.*rank 0 4, rank 1 2"):
            one.fit(x[:16], y[:16], batch_size=4 * (1 + hvd.rank()), callbacks=[hvd.callbacks.Distributed()])
        two = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1 + hvd.rank())])
        with pytest.raises(ValueError, match=r"differ from number 0 on: .*float32\[3, 2\] on rank 1"):
            hvd.broadcast_variables(two.weights)

    world.run(run)
