"""Trainings with JAX in worlds of two processes: optax, gradient functions, parameters, and other frameworks beside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from worlds import Nursery, World


@pytest.fixture(scope="module")
def world(jax_nursery: Nursery) -> Iterator[World]:
    """Return a world that the tests of this module use one after the other."""
    world = World(jax_nursery, 2, {"FARANDOLE_CHECK_PARAMETERS": "0"})  # Some tests count requests.
    world.run(begin)
    yield world
    world.close()


def begin() -> None:
    import farandole.jax as hvd

    hvd.init()


def test_an_optimizer_of_optax_averages_gradients(world: World) -> None:
    def run() -> list[Any]:
        import jax
        import jax.numpy as jnp
        import numpy as np
        import optax

        import farandole.jax as hvd

        params = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(2, jnp.float32)}
        mine = jax.tree.map(lambda array: array * (hvd.rank() + 1) + 1, params)
        plain = optax.adam(0.1)
        averages = jax.tree.map(lambda array: array * 1.5 + 1, params)
        wanted, _ = plain.update(averages, plain.init(params), params)
        for compression, rtol in ((hvd.Compression.none, 1e-6), (hvd.Compression.fp16, 2e-3)):
            optimizer = hvd.distributed(plain, compression=compression)
            for update in (optimizer.update, jax.jit(optimizer.update)):
                updates, state = update(mine, optimizer.init(params), params)
                jax.tree.map(lambda got, want, rtol=rtol: np.testing.assert_allclose(got, want, rtol), updates, wanted)
                assert jax.tree.structure(state.inner) == jax.tree.structure(plain.init(params))
        # optax runs the wrapped optimizer in each pass, and takes what it did in the last one.
        several = optax.MultiSteps(hvd.distributed(optax.sgd(1.0)), 2)
        state = several.init(params)
        before = hvd.stats()["operations"]["allreduce"]["requests"]
        for _ in range(4):
            updates, state = jax.jit(several.update)(mine, state, params)
        after = hvd.stats()["operations"]["allreduce"]["requests"]
        np.testing.assert_allclose(updates["a"], -averages["a"])
        with pytest.raises(ValueError, match=r"one of hvd\.Compression, not"):
            hvd.distributed(plain, compression="fp16")
        return [after - before, float(updates["b"][0])]

    for outcome in world.run(run):
        assert outcome == [4 * 2, -2.5]


def test_rest_of_a_compressed_gradient_is_sent_later(world: World) -> None:
    def run() -> tuple[list[float], float]:
        import jax
        import jax.numpy as jnp
        import numpy as np
        import optax

        import farandole.jax as hvd

        gradient = jnp.asarray(np.random.default_rng(hvd.rank()).normal(size=1000), jnp.float32)
        mean = hvd.allreduce(gradient)
        errors = []
        for compression in (hvd.Compression.topk(0.1), hvd.Compression.int8):
            optimizer = hvd.distributed(optax.sgd(1.0), compression=compression)
            update, state = jax.jit(optimizer.update), optimizer.init(gradient)
            total = jnp.zeros(1000)
            for _ in range(30):
                updates, state = update(gradient, state)
                total -= updates
            # What is missing after many steps is what is remembered: no more than a few steps' gradients.
            missing = jnp.abs(total - 30 * mean).max()
            left = jnp.abs(hvd.allreduce(state.residuals)).max()
            errors.append(float(missing / jnp.abs(mean).max()))
            np.testing.assert_allclose(missing, left, rtol=1e-2)
        return errors, float(jnp.abs(mean).max())

    (topk, int8), _ = world.run(run)[0]
    assert 0.5 < topk < 20
    assert int8 < 0.1


def test_gradient_functions(world: World) -> None:
    def run() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        import farandole.jax as hvd

        def loss(params: Any, data: Any) -> tuple[Any, Any]:
            return (params["w"] * data).sum(), data.shape

        params, data = {"w": jnp.ones(3)}, jnp.arange(3.0) * (hvd.rank() + 1)
        for transform in (lambda function: function, jax.jit):
            (value, shape), gradients = transform(hvd.distributed_value_and_grad(loss, has_aux=True))(params, data)
            assert (float(value), shape[0]) == (3.0 * (hvd.rank() + 1), 3)
            np.testing.assert_allclose(gradients["w"], [0, 1.5, 3])
            gradients, _ = transform(hvd.distributed_grad(loss, has_aux=True, op=hvd.Sum))(params, data)
            np.testing.assert_allclose(gradients["w"], [0, 3, 6])
        only = hvd.distributed_grad(lambda x: (x**2).sum())(jnp.ones(2) * hvd.rank())
        np.testing.assert_allclose(only, [1, 1])

    world.run(run)


def test_parameters_of_the_root(world: World) -> None:
    def run() -> str:
        import jax.numpy as jnp
        import numpy as np

        import farandole.jax as hvd

        rank = hvd.rank()
        params = {"w": [jnp.ones(3) * rank, jnp.ones((), jnp.bfloat16) * rank], "step": rank, "none": None}
        got = hvd.broadcast_parameters(params, root_rank=1)
        np.testing.assert_array_equal(got["w"][0], np.ones(3))
        assert got["w"][1].dtype == jnp.bfloat16 and int(got["step"]) == 1 and got["none"] is None
        with pytest.raises(ValueError) as error:
            hvd.broadcast_parameters({"w": jnp.ones(3 + rank)})
        hvd.grouped_allreduce({"a": jnp.ones(2)})["a"].block_until_ready()
        return str(error.value)

    for sentence in world.run(run):
        assert "['w'] float" in sentence and "differ from number 0 on" in sentence


def test_arrays_of_other_names_are_an_error_on_all_ranks(world: World) -> None:
    def run() -> str:
        import jax.numpy as jnp

        import farandole.jax as hvd

        with pytest.raises(ValueError) as error:
            hvd.broadcast_parameters({"a": jnp.ones(2), "b" if hvd.rank() == 0 else "c": jnp.ones(2)})
        return str(error.value)

    for sentence in world.run(run):
        assert "they differ from number 1 on: ['c'] float" in sentence and ", ['b'] float" in sentence


def test_two_frameworks_train_in_one_process(world: World) -> None:
    def run() -> list[list[float]]:
        import threading

        import jax
        import jax.numpy as jnp
        import numpy as np
        import optax
        import torch

        import farandole.jax as hvd
        import farandole.numpy as arrays
        import farandole.torch as torch_hvd

        assert torch_hvd.size() == hvd.size() == arrays.size() == 2
        rank = hvd.rank()
        results: dict[str, list[float]] = {}

        def train_torch() -> None:
            model = torch.nn.Linear(4, 1, bias=False)
            torch.nn.init.ones_(model.weight)
            plain = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = torch_hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
            for _ in range(20):
                optimizer.zero_grad()
                (model(torch.ones(1, 4) * (rank + 1)) ** 2).mean().backward()
                optimizer.step()
            results["torch"] = model.weight.detach()[0].tolist()

        def train_jax() -> None:
            optimizer = hvd.distributed(optax.sgd(0.1))
            weight = jnp.ones(4, jnp.float32)

            @jax.jit
            def step(weight: Any, state: Any) -> tuple[Any, Any]:
                gradient = jax.grad(lambda weight: (weight @ jnp.ones(4, jnp.float32) * (rank + 1)) ** 2)(weight)
                updates, state = optimizer.update(gradient, state)
                return optax.apply_updates(weight, updates), state

            state = optimizer.init(weight)
            for _ in range(20):
                weight, state = step(weight, state)
            results["jax"] = weight.tolist()

        threads = [threading.Thread(target=train) for train in (train_torch, train_jax)]
        for thread in threads:
            thread.start()
        totals = [float(arrays.allreduce(np.ones(1), op=arrays.Sum)[0]) for _ in range(50)]
        for thread in threads:
            thread.join()
        assert totals == [2.0] * 50
        return [results["torch"], results["jax"]]

    (of_torch, of_jax), others = world.run(run)
    assert [of_torch, of_jax] == others
    assert of_torch == pytest.approx(of_jax, rel=1e-5)


def test_a_worker_leaves_when_the_programs_that_it_called_have_ended(jax_nursery: Nursery) -> None:
    def run() -> float:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        def called(count: int) -> Any:
            """Call a function that comes to its collective late, as rank 1 computes for a while before it."""
            slow = 60 if hvd.rank() == 1 else 1
            step = jax.jit(lambda x: hvd.allreduce(jax.lax.fori_loop(0, slow, lambda _, x: x @ x / 700, x), op=hvd.Sum))
            result = jnp.ones((700, 700))
            for _ in range(count):
                result = step(result) / 2
            return result

        hvd.init()
        jax.block_until_ready(called(1))
        result = called(3)
        if hvd.rank() == 1:
            del result  # As a function's arrays are gone when it has returned.
            hvd.shutdown()
            return 1.0
        return float(result[0, 0])

    world = World(jax_nursery, 2, {"FARANDOLE_CHECK_PARAMETERS": "0"})  # Some tests count requests.
    try:
        assert world.run(run) == [1.0, 1.0]
    finally:
        world.close()
