"""A model of Flax NNX, trained by two workers: as one worker does it that has the samples of both.

It is skipped where Flax is not installed: with Orbax and TensorStore, which it needs, it is 100 MB.
"""

from __future__ import annotations

import importlib.util

import pytest
from worlds import Nursery, World

pytestmark = pytest.mark.skipif(importlib.util.find_spec("flax") is None, reason="flax is not installed")


def test_an_optimizer_of_nnx_averages_gradients(jax_nursery: Nursery) -> None:
    def train() -> tuple[list[float], list[float]]:
        from typing import Any

        import jax
        import jax.numpy as jnp
        import numpy as np
        import optax
        from flax import nnx

        import farandole.jax as hvd

        hvd.init()

        class Model(nnx.Module):
            def __init__(self, seed: int) -> None:
                rngs = nnx.Rngs(seed)
                self.first = nnx.Linear(4, 8, rngs=rngs, param_dtype=jnp.float32)
                self.last = nnx.Linear(8, 1, rngs=rngs, param_dtype=jnp.float32)

            def __call__(self, x: Any) -> Any:
                return self.last(nnx.tanh(self.first(x)))

        @nnx.jit
        def step(model: Any, optimizer: Any, x: Any) -> None:
            def loss(model: Any) -> Any:
                return ((model(x) - x.sum(1, keepdims=True)) ** 2).mean()

            _, gradients = nnx.value_and_grad(loss)(model)
            optimizer.update(model, gradients)

        def parameters(model: Any) -> list[float]:
            return np.concatenate([np.ravel(each) for each in jax.tree.leaves(nnx.state(model, nnx.Param))]).tolist()

        # A worker that does not get the root's parameters has wrong values.
        model, reference = Model(hvd.rank()), Model(0)
        nnx.update(model, hvd.broadcast_parameters(nnx.state(model)))
        plain = optax.adam(0.01)
        optimizer = nnx.Optimizer(model, hvd.distributed(plain), wrt=nnx.Param)
        alone = nnx.Optimizer(reference, plain, wrt=nnx.Param)
        for number in range(10):
            samples = jnp.asarray(np.random.default_rng(number).normal(size=(16, 4)), jnp.float32)
            step(model, optimizer, samples[hvd.rank() :: 2])
            step(reference, alone, samples)
        return parameters(model), parameters(reference)

    world = World(jax_nursery, 2)
    try:
        (first, reference), (second, _) = world.run(train)
    finally:
        world.close()
    assert first == second
    assert first == pytest.approx(reference, rel=1e-3, abs=1e-4)
