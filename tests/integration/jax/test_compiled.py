"""Collectives inside of functions that JAX compiles, in a world of two processes: order, names and transformations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from worlds import Nursery, World


@pytest.fixture(scope="module")
def world(jax_nursery: Nursery) -> Iterator[World]:
    """Return a world that the tests of this module use one after the other; each process has two of JAX's devices."""
    world = World(jax_nursery, 2, {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"})
    world.run(begin)
    yield world
    world.close()


def begin() -> None:
    import farandole.jax as hvd

    hvd.init()


def requests() -> int:
    """Return how many allreduces this worker has submitted."""
    import farandole.jax as hvd

    return int(hvd.stats()["operations"]["allreduce"]["requests"])


# --- order and names -----------------------------------------------------------------------------------------------


def test_a_program_that_differs_between_ranks_keeps_its_order(world: World) -> None:
    def run() -> list[list[float]]:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        # Rank 0 computes more, so that XLA schedules and reuses memory differently there.
        @jax.jit
        def step(x: Any) -> list[Any]:
            results = []
            for i in range(24):
                given = x[: 50 + i] * (i + 1)
                if hvd.rank() == 0 and i % 3 == 0:
                    given = given + 0 * jnp.sum(jnp.tanh(x @ x.T))
                results.append(hvd.allreduce(jnp.sin(given) @ x, op=hvd.Sum).sum())
            return results

        x = jnp.ones((120, 120), jnp.float32) * 0.01
        return [[float(each) for each in step(x)] for _ in range(20)]

    first, second = world.run(run)
    assert first == second
    assert all(each == first[0] for each in first)


def test_functions_that_were_traced_in_another_order_match(world: World) -> None:
    def run() -> list[float]:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        double = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum) * 2)
        triple = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum) * 3)
        x = jnp.ones(5)
        lowered = [function.lower(x) for function in ((double, triple) if hvd.rank() == 0 else (triple, double))]
        assert len(lowered) == 2
        return [float(double(x)[0]), float(triple(x)[0]), float(double(x)[0])]

    for values in world.run(run):
        assert values == [4.0, 6.0, 4.0]


def test_equal_calls_stay_two_and_calls_without_use_are_made(world: World) -> None:
    def run() -> list[int]:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        @jax.jit
        def both(x: Any) -> Any:
            unused = hvd.allreduce(x * 2)
            twice = hvd.allreduce(x, op=hvd.Sum) + hvd.allreduce(x, op=hvd.Sum)
            return twice if hvd.rank() == 0 else twice + 0 * unused.sum()

        counts = [requests()]
        for _ in range(2):
            assert both(jnp.ones(2)).tolist() == [4.0, 4.0]
            counts.append(requests())
        return [after - before for before, after in itertools.pairwise(counts)]

    assert world.run(run) == [[3, 3], [3, 3]]


def test_a_function_that_is_used_twice_in_a_program_is_refused_on_all_ranks(world: World) -> None:
    def run() -> str:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        inner = jax.jit(lambda x: hvd.allreduce(jnp.tanh(x @ x)))
        x = jnp.ones((64, 64))
        with pytest.raises(ValueError) as error, hvd.translated():
            jax.block_until_ready(jax.jit(lambda x: (inner(x), inner(x + 1)))(x))
        inline = jax.jit(lambda x: hvd.allreduce(jnp.tanh(x @ x)), inline=True)
        a, b = jax.jit(lambda x: (inline(x), inline(x + 1)))(x)
        assert a.shape == b.shape
        return str(error.value)

    for sentence in world.run(run):
        assert "is used several times in one compiled program" in sentence
        assert "jax.jit(function, inline=True)" in sentence


def test_runs_that_are_dispatched_together_do_not_mix(world: World) -> None:
    def run() -> list[float]:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        function = jax.jit(lambda x: hvd.allreduce(jnp.tanh(x @ x) * 0 + x, op=hvd.Sum))
        x = jnp.ones((256, 256))
        results = [function(x * i) for i in range(20)]
        return [float(result[0, 0]) for result in results]

    for values in world.run(run):
        assert values == [2.0 * i for i in range(20)]


def test_more_collectives_than_threads_in_shuffled_readiness(world: World) -> None:
    def run() -> list[float]:
        import jax
        import jax.numpy as jnp

        import farandole.jax as hvd

        # The chains get ready after different amounts of work; names are by place, whatever is first.
        @jax.jit
        def many(x: Any) -> list[Any]:
            results = []
            for i in range(40):
                given = x
                for _ in range((i * 7 + 3 * hvd.rank()) % 11):
                    given = given @ x / 64
                results.append(hvd.allreduce(given * 0 + i, op=hvd.Sum)[0, 0])
            return results

        x = jnp.ones((64, 64))
        for _ in range(5):
            values = [float(each) for each in many(x)]
        return values

    for values in world.run(run):
        assert values == [2.0 * i for i in range(40)]


# --- transformations -------------------------------------------------------------------------------------------------


def test_control_flow(world: World) -> None:
    def run() -> list[Any]:
        import jax
        import jax.numpy as jnp
        from jax import lax

        import farandole.jax as hvd

        rank = hvd.rank()

        @jax.jit
        def loops(x: Any) -> Any:
            carried, stacked = lax.scan(
                lambda c, s: (hvd.allreduce(c) + s, hvd.allreduce(s, op=hvd.Sum)), x, x[None] * 2
            )
            counted = lax.while_loop(lambda c: hvd.allreduce(c, op=hvd.Max).sum() < 20, lambda c: c + rank, x)
            chosen = lax.cond(x.sum() >= 0, lambda y: hvd.allreduce(y, op=hvd.Sum), lambda y: y, x)
            return carried, stacked, counted, chosen

        x = jnp.array([1.0, 2.0]) + rank
        return [jax.tree.map(lambda each: each.tolist(), loops(x))]

    for rank, ((carried, stacked, counted, chosen),) in enumerate(world.run(run)):
        own = [1.0 + rank, 2.0 + rank]
        assert carried == [1.5 + 2 * own[0], 2.5 + 2 * own[1]]
        assert stacked == [[6.0, 10.0]]
        assert sum(counted) >= (20 if rank == 1 else 0)
        assert chosen == [3.0, 5.0]


def test_forward_and_reverse_derivatives(world: World) -> None:
    def run() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        import farandole.jax as hvd

        rank = hvd.rank()
        x = jnp.arange(4.0) + rank + 1
        tangent = jnp.ones(4) * (rank + 1)
        for transform in (lambda function: function, jax.jit):
            value, moved = jax.jvp(transform(lambda x: hvd.allreduce(x, op=hvd.Sum) ** 2), (x,), (tangent,))
            total = 2 * jnp.arange(4.0) + 3
            np.testing.assert_allclose(value, total**2)
            np.testing.assert_allclose(moved, 2 * total * 3)
            gradient = transform(jax.grad(lambda x: (hvd.allreduce(x, op=hvd.Sum) ** 2).sum()))(x)
            np.testing.assert_allclose(gradient, 2 * (2 * total))
            # Through a loop, a branch, a rematerialized part, and twice.
            looped = jax.grad(lambda x: jax.lax.scan(lambda c, s: (hvd.allreduce(c), s), x, None, length=3)[0].sum())
            np.testing.assert_allclose(transform(looped)(x), np.ones(4))
            again = jax.grad(jax.checkpoint(lambda x: (hvd.allreduce(jnp.sin(x)) ** 2).sum()))
            plain = jax.grad(lambda x: (hvd.allreduce(jnp.sin(x)) ** 2).sum())
            np.testing.assert_allclose(transform(again)(x), transform(plain)(x))
            second = jax.grad(lambda x: jax.grad(lambda y: (hvd.allreduce(y) ** 3).sum())(x).sum())
            mean = jnp.arange(4.0) + 1.5
            np.testing.assert_allclose(transform(second)(x), 6 * mean)
            scanned = jax.grad(lambda x: jax.lax.scan(lambda c, s: (hvd.allreduce(c * s), c), x, x[:2])[0].sum())
            assert transform(scanned)(x[:1]).shape == (1,)
        with pytest.raises(ValueError, match="reducescatter has a gradient for Average and Sum only"):
            jax.grad(lambda x: hvd.reducescatter(x, op=hvd.Max).sum())(x)

    world.run(run)


def test_mapped_collectives_are_those_of_each_element(world: World) -> None:
    def run() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        import farandole.jax as hvd

        x = jnp.arange(24.0).reshape(3, 4, 2) * (hvd.rank() + 1)
        functions = (
            lambda each: hvd.allreduce(each, op=hvd.Max),
            lambda each: hvd.allgather(each),
            lambda each: hvd.alltoall(each),
            lambda each: hvd.reducescatter(each, op=hvd.Sum),
            lambda each: hvd.broadcast(each, 1),
            lambda each: hvd.grouped_allreduce([each, jnp.ones(2)])[0],
        )
        for function in functions:
            for axis in (0, 2):
                moved = jnp.moveaxis(x, 0, axis)
                mapped = jax.jit(jax.vmap(function, in_axes=axis))(moved)
                each = jnp.stack([function(x[i]) for i in range(3)])
                np.testing.assert_array_equal(mapped, each)
        with pytest.raises(NotImplementedError, match="Adasum cannot be mapped"):
            jax.vmap(lambda each: hvd.allreduce(each, op=hvd.Adasum))(x)

    world.run(run)


def test_shard_map_over_local_devices(world: World) -> None:
    def run() -> list[float]:
        import jax
        import jax.numpy as jnp
        from jax.sharding import NamedSharding, PartitionSpec

        import farandole.jax as hvd

        mesh = jax.make_mesh((2,), ("local",))
        spec = PartitionSpec("local")

        def part(x: Any) -> Any:
            return jax.lax.psum(hvd.allreduce(x, op=hvd.Sum), "local")

        function = jax.jit(jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=PartitionSpec()))
        x = jax.device_put(jnp.arange(8.0) * (hvd.rank() + 1), NamedSharding(mesh, spec))
        for _ in range(3):
            result = function(x).tolist()
        with pytest.raises(ValueError, match=r"jax\.shard_map"):
            jax.jit(hvd.allreduce)(x)
        gradient = jax.jit(
            jax.grad(lambda x: jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=PartitionSpec())(x).sum())
        )
        assert gradient(x).tolist() == [2.0] * 8
        return result

    for values in world.run(run):
        assert values == [3.0 * (i + i + 4) for i in range(4)]
