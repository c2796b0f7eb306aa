"""PyTorch, TensorFlow, JAX and NumPy in one worker: one engine, one world, and names that belong to one front end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from nurseries import Nurseries
from worlds import World


@pytest.fixture(scope="module")
def world(nurseries: Nurseries) -> Iterator[World]:
    """Return a world of two that the tests of this module use one after the other."""
    world = World(nurseries["several"], 2)
    yield world
    world.close()


def test_one_init_is_for_all(world: World) -> None:
    def body() -> None:
        import farandole.jax
        import farandole.numpy
        import farandole.tensorflow
        import farandole.torch
        from farandole.worker.core import basics

        fronts = (farandole.tensorflow, farandole.torch, farandole.jax, farandole.numpy)
        farandole.tensorflow.init()
        session = basics.current()
        for front in fronts:
            front.init()
            assert basics.current() is session
            assert (front.rank(), front.size()) == (session.world.rank, 2)
        # One of them registers a process set, which the others use.
        first = farandole.torch.add_process_set([0])
        try:
            if farandole.numpy.rank() == 0:
                assert all(
                    float(front.allreduce(3.0, process_set=first)) == 3.0
                    for front in fronts
                    if front is not farandole.torch
                )
        finally:
            farandole.tensorflow.remove_process_set(first)

    world.run(body)


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_calls_of_two_front_ends_never_match(world: World, named: bool) -> None:
    """Ranks begin them in opposite orders. With one name for all, each would get another one's sum."""

    def body() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np
        import tensorflow as tf
        import torch

        import farandole.jax
        import farandole.numpy
        import farandole.tensorflow
        import farandole.torch

        how = {"name": "same"} if named else {}
        rank = farandole.torch.rank()
        begun: dict[str, Any] = {}

        def begin_torch() -> None:
            begun["torch"] = farandole.torch.allreduce_async(torch.ones(3), op=farandole.torch.Sum, **how)

        def begin_numpy() -> None:
            begun["numpy"] = farandole.numpy.allreduce_async(np.full(3, 10.0, "f"), op=farandole.numpy.Sum, **how)

        def begin_jax() -> None:  # Compiled, so that it is under way as the others are.
            add_up = jax.jit(lambda array: farandole.jax.allreduce(array, op=farandole.jax.Sum, **how))
            begun["jax"] = add_up(jnp.full(3, 1000.0))

        for begin in (begin_torch, begin_jax, begin_numpy) if rank == 0 else (begin_numpy, begin_jax, begin_torch):
            begin()
        total = farandole.tensorflow.allreduce(tf.fill([3], 100.0), op=farandole.tensorflow.Sum, **how)
        assert total.numpy().tolist() == [200.0] * 3
        assert np.asarray(begun["jax"]).tolist() == [2000.0] * 3
        assert farandole.torch.synchronize(begun["torch"]).tolist() == [2.0] * 3
        assert farandole.numpy.synchronize(begun["numpy"]).tolist() == [20.0] * 3

    world.run(body)


def train_with_torch(steps: int) -> list[bytes]:
    """Train a small network on this rank's samples, and return its parameters."""
    import torch

    import farandole.torch as hvd

    torch.manual_seed(7)
    noise = torch.Generator().manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 5, generator=noise)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().numpy().tobytes() for parameter in model.parameters()]


def train_with_tensorflow(steps: int) -> list[bytes]:
    """Train a network of the same shapes on this rank's samples, and return its variables."""
    import numpy as np
    import tensorflow as tf

    import farandole.tensorflow as hvd

    shapes = [(16, 5), (16,), (3, 16), (3,)]  # Those of the other one: no mismatch would be noticed.
    first = np.random.default_rng(7)
    noise = np.random.default_rng(hvd.rank())
    variables = [tf.Variable(first.normal(size=shape).astype("f")) for shape in shapes]
    hvd.broadcast_variables(variables, root_rank=0)
    for _ in range(steps):
        batch = tf.constant(noise.normal(size=(8, 5)).astype("f"))
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            hidden = tf.tanh(tf.matmul(batch, variables[0], transpose_b=True) + variables[1])
            loss = tf.reduce_mean(tf.square(tf.matmul(hidden, variables[2], transpose_b=True) + variables[3]))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)
    return [variable.numpy().tobytes() for variable in variables]


def test_two_frameworks_train_at_once(world: World) -> None:
    """Each trains in its own thread of one worker: the bits are those of one training after the other."""

    def body() -> list[list[bytes]]:
        from concurrent.futures import ThreadPoolExecutor

        steps = 25
        alone = [train_with_torch(steps), train_with_tensorflow(steps)]
        with ThreadPoolExecutor(2) as threads:
            both = [threads.submit(train, steps) for train in (train_with_torch, train_with_tensorflow)]
            at_once = [training.result(100) for training in both]
        assert at_once == alone
        return at_once

    first, second = world.run(body)
    assert first == second
