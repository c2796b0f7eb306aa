"""An optimizer of optax reports ranks that begin with different parameters, also in compiled steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from worlds import Nursery, World


@pytest.fixture(scope="module")
def world(jax_nursery: Nursery) -> Iterator[World]:
    """Return a world that the tests of this module use one after the other."""
    world = World(jax_nursery, 2)
    world.run(begin)
    yield world
    world.close()


def begin() -> None:
    import farandole.jax as hvd

    hvd.init()


def told_in_training(how: str, broadcast: str) -> list[tuple[int, str]]:
    """Return what the user is told, as (rank, text), in a training whose ranks begin with different parameters."""
    import threading

    import jax
    import jax.numpy as jnp
    import optax

    import farandole.jax as hvd
    from farandole.worker.gradients import parameter_check

    said: list[tuple[int, str]] = []
    usual, parameter_check.tell_user = parameter_check.tell_user, lambda level, text, rank: said.append((rank, text))
    try:
        optimizer = hvd.distributed(optax.adam(0.1))
        first = {"w": jnp.full(3, 1.0 + hvd.rank()), "key": jax.random.key(hvd.rank())}
        trained = {"w": first["w"]} if how != "keys" else first
        params = hvd.broadcast_parameters(trained) if broadcast == "before init" else trained
        state = (jax.jit(optimizer.init) if how == "compiled init" else optimizer.init)(params)
        if broadcast == "after init":
            params = hvd.broadcast_parameters(params)
        if broadcast == "other arrays":
            params = jax.tree.map(lambda array: array * 1, params)
            del first, trained
        gradients = {"w": jnp.ones(3)}
        update = jax.jit(optimizer.update) if how.startswith("compiled") else optimizer.update
        for _ in range(2):
            _, state = update(gradients, state, None if how == "no parameters" else params)
    finally:
        # The thread that reads the outcome ends with it.
        for thread in threading.enumerate():
            if thread.name == "farandole-parameters":
                thread.join(60)
        parameter_check.tell_user = usual
    return said


@pytest.mark.parametrize("how", ["eager", "no parameters", "compiled"])
def test_rank_0_warns_about_different_parameters_and_names_the_line_to_add(world: World, how: str) -> None:
    first, second = world.run(told_in_training, how, "nowhere")
    ((rank, text),) = first
    assert rank == 0 and "params = hvd.broadcast_parameters(params)" in text
    assert "FARANDOLE_CHECK_PARAMETERS=0" in text
    assert second == []


@pytest.mark.parametrize("how", ["eager", "no parameters", "compiled"])
@pytest.mark.parametrize("broadcast", ["before init", "after init"])
def test_parameters_that_are_broadcast_give_no_warning(world: World, how: str, broadcast: str) -> None:
    assert world.run(told_in_training, how, broadcast) == [[], []]


@pytest.mark.parametrize(("how", "broadcast"), [("compiled init", "nowhere"), ("compiled", "other arrays")])
def test_parameters_that_are_not_known_are_not_compared(world: World, how: str, broadcast: str) -> None:
    assert world.run(told_in_training, how, broadcast) == [[], []]
