"""What Keras does with TensorFlow only: graphs of all kinds, sparse gradients, strategies, and Keras 2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from worlds import Nursery, World


@pytest.fixture(scope="module")
def world(tensorflow_nursery: Nursery) -> Iterator[World]:
    """Return a world that the tests of this module use one after the other."""
    pytest.importorskip("keras")
    world = World(tensorflow_nursery, 2)
    world.run(begin)
    yield world
    world.close()


def begin() -> None:
    import farandole.keras as hvd

    hvd.init()


def data() -> tuple[Any, Any]:
    import numpy as np

    x = np.sin(np.outer(np.arange(32) + 1.0, [1.0, 2.0, 3.0])).astype("float32")
    return x, (x @ np.array([[1.0], [-2.0], [0.5]]) + 0.1).astype("float32")


def model(layers: Any) -> Any:
    import keras

    keras.utils.set_random_seed(7)
    return layers.Sequential([layers.layers.Dense(4, activation="tanh"), layers.layers.Dense(1)])


def rows_of(rank: int) -> list[int]:
    """Return the rows of a worker, in whose batches of 4 is its half of each 8."""
    return [row for row in range(32) if row % 8 // 4 == rank]


def digest(weights: list[Any]) -> bytes:
    return b"".join(weight.tobytes() for weight in weights)


def test_xla_warns_and_strategies_are_refused(world: World) -> None:
    def run() -> None:
        import keras
        import pytest
        import tensorflow as tf

        import farandole.keras as hvd

        x, y = data()
        together = model(keras)
        # The first optimizer of this process is made when the arguments of compile() are.
        with pytest.warns(RuntimeWarning, match="jit_compile=True is left out"):
            together.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=True)
        together.fit(x, y, verbose=0)
        assert together.jit_compile is False
        later = model(keras)
        later.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
        later.optimizer = hvd.DistributedOptimizer(later.optimizer)
        later.train_on_batch(x, y)

        class Two(keras.Sequential):
            def train_step(self, data: Any) -> dict[str, Any]:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2)
                gradients = tape.gradient(loss, self.trainable_variables)
                self.first.apply_gradients(zip(gradients[:1], self.trainable_variables[:1], strict=True))
                self.second.apply_gradients(zip(gradients[1:], self.trainable_variables[1:], strict=True))
                return {"loss": loss}

        two = Two([keras.layers.Dense(1)])
        two.first, two.second = (hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)) for _ in range(2))
        two.compile(jit_compile=True)
        two.fit(x * (1 + hvd.rank()), y, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
        assert len(set(hvd.allgather_object(digest(two.get_weights())))) == 1
        with tf.distribute.OneDeviceStrategy("cpu:0").scope(), pytest.raises(ValueError, match="OneDeviceStrategy"):
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))

    world.run(run)


def test_graphs_of_several_steps_and_loops_of_the_user_s(world: World) -> None:
    def run() -> list[bytes]:
        import keras
        import numpy as np
        import tensorflow as tf

        import farandole.keras as hvd

        x, y = data()
        rows = rows_of(hvd.rank())
        results = []
        for way in ("steps_per_execution", "function", "apply", "eager"):
            together = model(keras)
            together.build((None, 3))
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
            if way == "steps_per_execution":
                # The second one is of Keras 2's time, and in Horovod's examples.
                together.compile(optimizer, "mse", steps_per_execution=2, experimental_run_tf_function=False)
                together.fit(x[rows], y[rows], batch_size=4, epochs=1, shuffle=False, verbose=0)
            else:

                def step(a: Any, b: Any, way: str = way, together: Any = together, optimizer: Any = optimizer) -> None:
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_mean((together(a) - b) ** 2)
                    gradients = tape.gradient(loss, together.trainable_variables)
                    if way == "apply":
                        optimizer.apply(gradients, together.trainable_variables)
                    else:
                        optimizer.apply_gradients(zip(gradients, together.trainable_variables, strict=True))

                step = step if way == "eager" else tf.function(step)
                for begin in range(0, 16, 4):
                    part = rows[begin : begin + 4]
                    step(tf.constant(x[part]), tf.constant(y[part]))
            results.append(together.get_weights())
        alone = model(keras)
        alone.compile(keras.optimizers.SGD(0.1), "mse")
        alone.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
        for weights in results:
            for mine, theirs in zip(weights, alone.get_weights(), strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
        return [digest(weights) for weights in results]

    first, second = world.run(run)
    assert first == second


def test_sparse_gradients_of_embeddings(world: World) -> None:
    def run() -> list[float]:
        import keras
        import tensorflow as tf

        import farandole.keras as hvd

        def stepped(times: int, accumulate: int | None, **options: Any) -> list[float]:
            table = keras.Variable(tf.zeros((4, 1)))
            plain = keras.optimizers.SGD(1.0, gradient_accumulation_steps=accumulate)
            optimizer = hvd.DistributedOptimizer(plain, **options)
            optimizer.build([table])

            @tf.function
            def step() -> None:
                indices = tf.constant([hvd.rank(), 3])
                slices = tf.IndexedSlices(tf.constant([[2.0], [4.0]]), indices, dense_shape=(4, 1))
                optimizer.apply_gradients([(slices, table)])

            for _ in range(times):
                step()
            return [-float(value) for value in table.numpy()[:, 0]]

        ways = ({}, {"sparse_as_dense": True}, {"op": hvd.Sum}, {"op": hvd.Adasum})
        return [*(stepped(1, None, **options) for options in ways), stepped(2, 2)]

    for seen in world.run(run):
        average = [1.0, 1.0, 0.0, 4.0]
        assert seen[:3] == [average, average, [2.0, 2.0, 0.0, 8.0]]
        # Of each step's 16 parts of 20 both have the same.
        assert seen[3] == pytest.approx([1.2, 1.2, 0.0, 4.8])
        assert seen[4] == average


def test_two_optimizers_in_one_graph(world: World) -> None:
    def run() -> list[float]:
        import keras
        import tensorflow as tf

        import farandole.keras as hvd

        pairs = [
            (keras.Variable(0.0), hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))),
            (keras.Variable(0.0), hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))),
        ]

        @tf.function
        def step() -> None:
            for number, (variable, optimizer) in enumerate(pairs):
                optimizer.apply_gradients([(tf.constant(10.0 * number + hvd.rank()), variable)])

        for _ in range(3):
            step()
        return [float(variable.numpy()) for variable, _ in pairs]

    assert world.run(run) == [[-1.5, -31.5]] * 2


def test_the_forward_and_backward_pass_are_compiled_and_the_collectives_are_not(world: World) -> None:
    def run() -> list[bytes]:
        import keras
        import numpy as np
        import tensorflow as tf
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

        import farandole.keras as hvd

        x, y = data()
        rows = rows_of(hvd.rank())
        compiled = []

        class Note(keras.layers.Layer):
            def call(self, inputs: Any) -> Any:
                compiled.append(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))
                return inputs

        def trained(jit_compile: bool) -> Any:
            trains = model(keras)
            trains.add(Note())
            trains.build((None, 3))
            compiled.clear()
            if jit_compile:
                trains.call = tf.function(trains.call, jit_compile=True)
            trains.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
            trains.fit(x[rows], y[rows], batch_size=4, epochs=2, shuffle=False, verbose=0)
            assert set(compiled) == {jit_compile}
            return trains.get_weights()

        plain, fused = trained(False), trained(True)
        for one, other in zip(plain, fused, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        return [digest(plain), digest(fused)]

    first, second = world.run(run)
    assert first == second


def test_keras_2(world: World) -> None:
    pytest.importorskip("tf_keras")

    def run() -> list[bytes]:
        import numpy as np
        import tf_keras

        import farandole.keras as hvd

        x, y = data()
        rows = rows_of(hvd.rank())
        digests = []
        kinds = tf_keras.optimizers
        for kind, passes in ((kinds.SGD, 2), (kinds.Adam, 1), (kinds.legacy.SGD, 2), (kinds.legacy.Adam, 1)):
            together = model(tf_keras)
            together.build((None, 3))
            if hvd.rank() == 1:
                together.set_weights([weight + 1 for weight in together.get_weights()])
            hvd.broadcast_variables(together.weights)
            optimizer = hvd.DistributedOptimizer(
                kind(0.1), backward_passes_per_step=passes, average_aggregated_gradients=True
            )
            assert optimizer.from_config(optimizer.get_config()).get_config() == optimizer.get_config()
            together.compile(optimizer, "mse", metrics=["mae"])
            callbacks = [hvd.callbacks.Distributed(), hvd.callbacks.LearningRateWarmupCallback(0.1, 0.001)]
            history = together.fit(
                x[rows], y[rows], batch_size=4, epochs=1, shuffle=False, verbose=0, callbacks=callbacks[:1]
            )
            assert len(set(hvd.allgather_object(str(history.history)))) == 1
            alone = model(tf_keras)
            alone.build((None, 3))
            alone.compile(kind(0.1), "mse")
            alone.set_weights(hvd.broadcast_object([weight + 0 for weight in model_start(tf_keras)]))
            alone.fit(x, y, batch_size=8 * passes, epochs=1, shuffle=False, verbose=0)
            for mine, theirs in zip(together.get_weights(), alone.get_weights(), strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5)
            digests.append(digest(together.get_weights()))
        return digests

    first, second = world.run(run)
    assert first == second


@pytest.mark.parametrize("kind", ["Keras 3", "Keras 2", "Keras 2, older optimizers"])
def test_gradients_that_the_optimizer_computes(world: World, kind: str) -> None:
    if kind != "Keras 3":
        pytest.importorskip("tf_keras")

    def run(kind: str) -> list[Any]:
        import keras
        import tensorflow as tf

        import farandole.keras as hvd

        if kind != "Keras 3":
            import tf_keras as keras
        sgd = keras.optimizers.legacy.SGD if "older" in kind else keras.optimizers.SGD
        mine = hvd.rank() + 1.0
        seen: list[Any] = []

        # A step takes reduced gradients as they are, and any others are reduced in it; with Sum, twice would show.
        shared, local = tf.Variable(0.0), tf.Variable(0.0)
        optimizer = hvd.DistributedOptimizer(sgd(1.0), op=hvd.Sum)
        optimizer.register_local_var(local)
        pairs = optimizer._compute_gradients(lambda: (shared + local) * mine, [[shared], local])
        seen.append([float(gradient) for gradient, _ in pairs])
        optimizer.apply_gradients([(2.0 * gradient, variable) for gradient, variable in pairs])
        seen.append([float(shared), float(local)])
        optimizer.apply_gradients([(tf.constant(mine), shared)])
        with tf.GradientTape() as tape:
            loss = shared * mine
        optimizer.compute_gradients(loss, [shared], tape)
        optimizer.apply_gradients([(tf.constant(mine), local)], name="of another variable")
        seen.append([float(shared), float(local)])
        assert optimizer._agg_helper is None

        # With several passes, the step reduces.
        weight = tf.Variable(0.0)
        optimizer = hvd.DistributedOptimizer(sgd(1.0), backward_passes_per_step=2)
        if hasattr(optimizer, "build"):
            optimizer.build([weight])

        @tf.function
        def step() -> None:
            pairs = optimizer._compute_gradients(lambda: weight * mine, [weight])
            optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)

        for _ in range(3):
            step()
            seen.append([float(weight), int(optimizer._agg_helper.counter)])
        return seen

    for rank, seen in enumerate(world.run(run, kind)):
        mine = rank + 1.0
        assert seen[0] == [3.0, mine / 2]
        assert seen[1] == [-6.0, -mine]
        assert seen[2] == [-9.0, -1.5 * mine]
        assert seen[3:] == [[0.0, 1], [-3.0, 0], [-3.0, 1]]


def model_start(layers: Any) -> list[Any]:
    """Return the weights that a model begins with."""
    made = model(layers)
    made.build((None, 3))
    return list(made.get_weights())
