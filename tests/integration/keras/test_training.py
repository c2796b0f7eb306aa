"""Trainings with Keras in a world of two processes, with each backend: what two workers do is what one would do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from worlds import Nursery, World


@pytest.fixture(scope="module")
def world(keras_nursery: Nursery) -> Iterator[World]:
    """Return a world that the tests of this module use one after the other."""
    world = World(keras_nursery, 2)
    world.run(begin)
    yield world
    world.close()


def begin() -> None:
    import os

    import farandole.keras as hvd

    os.environ["FARANDOLE_CHECK_PARAMETERS"] = "0"  # Some tests count requests.
    hvd.init()


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


OPTIMIZERS = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl", "Lion", "Lamb"]


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


def test_every_optimizer_of_keras_steps_with_averaged_gradients(world: World) -> None:
    def run() -> list[float]:
        import keras

        import farandole.keras as hvd

        def after_two_steps(optimizer: Any, scale: float) -> list[float]:
            variable = keras.Variable(keras.ops.ones((2, 2)))
            for step in (1.0, 3.0):
                gradient = keras.ops.convert_to_tensor([[scale * step, -scale], [scale, 0.5 * scale]])
                optimizer.apply_gradients([(gradient, variable)])
            return [float(value) for value in keras.ops.convert_to_numpy(variable).ravel()]

        results = []
        for name in (each for each in OPTIMIZERS if hasattr(keras.optimizers, each)):
            kind = getattr(keras.optimizers, name)
            # The mean of 1 and 3 is 2.
            results += after_two_steps(hvd.DistributedOptimizer(kind(0.1)), 1.0 + 2 * hvd.rank())
            assert results[-4:] == pytest.approx(after_two_steps(kind(0.1), 2.0)), name
        return results

    same_everywhere(world.run(run))


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


def test_adasum_combines_steps_of_a_scaled_loss(world: World) -> None:
    def run(inside: bool) -> tuple[list[float], float]:
        import keras
        import numpy as np

        import farandole.keras as hvd

        sgd = keras.optimizers.SGD(1.0)
        if inside:
            optimizer = keras.optimizers.LossScaleOptimizer(
                hvd.DistributedOptimizer(sgd, op=hvd.Adasum), initial_scale=4.0
            )
        else:
            scaling = keras.optimizers.LossScaleOptimizer(sgd, initial_scale=4.0)
            optimizer = hvd.DistributedOptimizer(scaling, op=hvd.Adasum)
        variable = keras.Variable([0.0, 0.0])
        optimizer.build([variable])

        def step(gradient: list[float]) -> None:
            if keras.backend.backend() == "jax":  # As in its train_step.
                values, state = optimizer.stateless_apply(
                    [each.value for each in optimizer.variables],
                    [keras.ops.convert_to_tensor(gradient)],
                    [variable.value],
                )
                variable.assign(values[0])
                for each, value in zip(optimizer.variables, state, strict=True):
                    each.assign(value)
            else:
                optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])

        # At right angles, both count in full; the scale of 4 is taken out.
        step([4.0, 0.0] if hvd.rank() == 0 else [0.0, 8.0])
        # Rank 0 skips this one.
        step([np.inf, 0.0] if hvd.rank() == 0 else [4.0, 0.0])
        return [float(each) for each in np.array(variable)], float(np.array(optimizer.dynamic_scale))

    for inside in (True, False):
        assert world.run(run, inside) == [([-2.0, -2.0], 2.0), ([-2.0, -2.0], 4.0)]


def test_passes_are_counted_and_a_gradient_may_be_missing_in_them(world: World) -> None:
    def run() -> tuple[list[Any], list[list[float]], str]:
        import keras
        import numpy as np

        import farandole.keras as hvd

        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
        variables = [keras.Variable(keras.ops.zeros((2 + place,))) for place in range(3)]
        counts = []

        def passes(missing: int) -> None:
            for _ in range(2):
                gradients = [
                    None if place == missing else keras.ops.full(each.shape, hvd.rank() + 1.0)
                    for place, each in enumerate(variables)
                ]
                optimizer.apply(gradients, variables)
                counts.append(int(np.array(optimizer.iterations)))

        passes(0)
        values = [np.array(each).tolist() for each in variables]
        try:
            passes(1 + hvd.rank())
        except Exception as error:
            return counts, values, str(error)
        raise AssertionError("a gradient that one rank has not was reduced")

    for counts, values, why in world.run(run):
        assert counts == [1, 2, 3]
        assert values == [[0.0] * 2, [-3.0] * 3, [-3.0] * 4]
        assert "rank 0 sent a tensor of shape [0], but rank 1 sent a tensor of shape [3]" in why


def test_a_rank_without_any_gradient_is_an_error_on_all(world: World) -> None:
    def run() -> tuple[str, list[list[float]]]:
        import keras
        import numpy as np

        import farandole.keras as hvd

        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
        variables = [keras.Variable(keras.ops.zeros((2 + place,))) for place in range(2)]
        own = [keras.ops.full(each.shape, hvd.rank() + 1.0) for each in variables]
        try:
            optimizer.apply(own if hvd.rank() == 0 else [None, None], variables)
        except Exception as error:
            optimizer.apply(own, variables)
            return str(error), [np.array(each).tolist() for each in variables]
        raise AssertionError("a rank without gradients was not missed")

    for why, values in world.run(run):
        assert "rank 0 sent a tensor of shape [2], but rank 1 sent a tensor of shape [0]" in why
        assert values == [[-1.5] * 2, [-1.5] * 3]


def test_passes_are_summed_for_local_variables_as_for_others(world: World) -> None:
    def run() -> list[list[float]]:
        import keras
        import numpy as np

        import farandole.keras as hvd

        class Plain(keras.optimizers.SGD):
            # As scripts have it that know nothing of Keras' accumulation.
            def __init__(self, name: str = "plain") -> None:
                super().__init__(1.0, name=name)

            def get_config(self) -> dict[str, Any]:
                return {"name": self.name}

        values = []
        for average in (False, True):
            optimizer = hvd.DistributedOptimizer(
                Plain("mine"), backward_passes_per_step=4, average_aggregated_gradients=average
            )
            variables = [keras.Variable([0.0]), keras.Variable([0.0])]
            optimizer.register_local_var(variables[0])
            for _ in range(4):
                optimizer.apply([keras.ops.convert_to_tensor([1.0 + hvd.rank()])] * 2, variables)
            values.append([float(np.array(each)[0]) for each in variables])
        return values

    # A local gradient is divided by the number of ranks.
    assert world.run(run) == [[[-2.0, -6.0], [-0.5, -1.5]], [[-4.0, -6.0], [-1.0, -1.5]]]


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
        for each in (plain, loaded):
            assert len(each.optimizer.variables) == len(optimizer.variables)
            for mine, theirs in zip(each.optimizer.variables, optimizer.variables, strict=True):
                np.testing.assert_array_equal(np.array(mine), np.array(theirs))
        before = hvd.stats()["operations"]["allreduce"]["requests"]
        loaded.train_on_batch(x[:8] * (1 + hvd.rank()), y[:8])
        assert hvd.stats()["operations"]["allreduce"]["requests"] == before + 4
        return check_alike(loaded.get_weights(), loaded.get_weights())

    same_everywhere(world.run(run, str(tmp_path)))


def test_local_variables_groups_compression_and_predivision(world: World) -> None:
    def run() -> list[list[float]]:
        import keras

        import farandole.keras as hvd

        def step(optimizer: Any, variables: list[Any], value: float) -> list[float]:
            gradients = [keras.ops.full(each.shape, value * (place + 1)) for place, each in enumerate(variables)]
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return [-float(keras.ops.sum(variable)) for variable in variables]

        def variables() -> list[Any]:
            return [keras.Variable(keras.ops.zeros(())) for _ in range(3)]

        mine = 1.0 + hvd.rank()
        sgd = keras.optimizers.SGD
        seen = []
        three = variables()
        local = hvd.DistributedOptimizer(sgd(1.0))
        local.register_local_var(three[1])
        seen.append(step(local, three, mine))
        unscaled = hvd.DistributedOptimizer(sgd(1.0), scale_local_gradients=False)
        three = variables()
        unscaled.register_local_var(three[0])
        seen.append(step(unscaled, three, mine))
        for options in (
            {"groups": 2},
            {"groups": [[0, 2]]},
            {"op": hvd.Sum},
            {"gradient_predivide_factor": 4.0},
            {"compression": hvd.Compression.fp16},
            {"sparse_as_dense": True},
        ):
            three = variables()
            if isinstance(options.get("groups"), list):
                options["groups"] = [[three[place] for place in group] for group in options["groups"]]
            seen.append(step(hvd.DistributedOptimizer(sgd(1.0), **options), three, mine))
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        partial = hvd.PartialDistributedOptimizer(sgd(1.0), local_layers=layer)
        layer.build((None, 1))
        seen.append(step(partial, [*layer.trainable_weights, variables()[0]], mine))
        return seen

    average, summed = [1.5, 3.0, 4.5], [3.0, 6.0, 9.0]
    for rank, seen in enumerate(world.run(run)):
        mine = 1.0 + rank
        assert seen[:2] == [[1.5, mine, 4.5], [mine, 3.0, 4.5]]
        assert seen[2:8] == [average, average, summed, average, average, average]
        assert seen[8] == [mine / 2, 3.0]


def test_adasum_combines_what_each_worker_has_stepped(world: World) -> None:
    def run() -> list[float]:
        import keras

        import farandole.keras as hvd

        # Orthogonal steps are added; equal ones count once.
        variable = keras.Variable(keras.ops.zeros((2,)))
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), op=hvd.Adasum)
        first = [1.0, 0.0] if hvd.rank() == 0 else [0.0, 1.0]
        for gradient in (first, [2.0, 0.0]):
            optimizer.apply_gradients([(keras.ops.convert_to_tensor(gradient), variable)])
        return [round(float(value), 5) for value in variable.numpy()]

    assert world.run(run) == [[-1.5, -0.5]] * 2


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
