"""Optimizers of Keras that reduce gradients before they step, with each backend; no model is trained."""

from __future__ import annotations

import re
from typing import Any

import pytest
from worlds import World

OPTIMIZERS = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl", "Lion", "Lamb"]


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

    first, second = world.run(run)
    assert first == second


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
        # Two gradients differ, and TensorFlow reports the one whose error comes first.
        assert re.search(r"rank 0 sent a tensor of shape \[(0|4)\], but rank 1 sent a tensor of shape \[(3|0)\]", why)


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
