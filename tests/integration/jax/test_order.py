"""Why the collectives of a compiled function are chained: XLA begins them in another order, and two ranks in two."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import Nursery, World


def run_two_collectives(chained: bool, alike: bool) -> tuple[list[str], str]:
    """Run a program with collectives a and b, and return in which order they were done, or what it has failed with.

    Args:
        chained: as they are; else, what orders them is taken out.
        alike: on all ranks, a comes after a long computation. Else, on rank 1 it is b that does.
    """
    import jax
    import jax.numpy as jnp
    from jax.extend.mlir.dialects import stablehlo

    import farandole.jax as hvd
    from farandole.jax import lowering

    hvd.init()
    if not chained:
        lowering._token_before = stablehlo.create_token  # type: ignore[assignment]
    done: list[str] = []

    def slow(x: Any) -> Any:
        for _ in range(30):
            x = jnp.tanh(x @ x) * 0.01
        return x[:4, :4]

    @jax.jit
    def both(x: Any, y: Any) -> Any:
        given = (slow(x), y * 2) if alike or hvd.rank() == 0 else (y * 2, slow(x))
        results = [hvd.allreduce(each, op=hvd.Sum) for each in given]
        for name, result in zip("ab", results, strict=True):
            jax.debug.callback(lambda _, name=name: done.append(name), result[0, 0])
        return results

    try:
        with hvd.translated():
            jax.block_until_ready(both(jnp.ones((300, 300)) * 0.01, jnp.ones((4, 4))))
    except hvd.HorovodInternalError as error:
        return done, str(error)
    jax.effects_barrier()
    return done, ""


def outcomes(nursery: Nursery, chained: bool, alike: bool) -> list[tuple[list[str], str]]:
    # Who waits in vain is told so soon.
    stalls = {"FARANDOLE_STALL_WARNING_SECONDS": "2", "FARANDOLE_STALL_SHUTDOWN_SECONDS": "5"}
    world = World(nursery, 2, stalls if not chained else {})
    try:
        return list(world.run(run_two_collectives, chained, alike))
    finally:
        world.close()


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "different"])
def test_collectives_are_begun_as_they_were_traced(jax_nursery: Nursery, alike: bool) -> None:
    assert outcomes(jax_nursery, chained=True, alike=alike) == [(["a", "b"], "")] * 2


def test_without_the_chain_the_order_is_that_of_the_arrays(jax_nursery: Nursery) -> None:
    assert outcomes(jax_nursery, chained=False, alike=True) == [(["b", "a"], "")] * 2


def test_without_the_chain_ranks_wait_for_each_other(jax_nursery: Nursery) -> None:
    for done, sentence in outcomes(jax_nursery, chained=False, alike=False):
        assert done == []
        assert "jax.allreduce.jit_both" in sentence
