"""Ranks that train a model with different weights are reported, with each backend of Keras."""

from __future__ import annotations

from collections.abc import Iterator

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
    import farandole.keras as hvd

    hvd.init()


def told_in_training(how: str) -> list[tuple[int, str]]:
    """Return what the user is told, as (rank, text), in a training whose ranks begin with different weights."""
    import keras
    import numpy as np

    import farandole.keras as hvd
    from farandole.worker.gradients import parameter_check

    said: list[tuple[int, str]] = []
    usual, parameter_check.tell_user = parameter_check.tell_user, lambda level, text, rank: said.append((rank, text))
    try:
        keras.utils.set_random_seed(hvd.rank())
        layers = [keras.layers.Dense(4), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((3,)), *layers])
        local = layers if how == "local layers" else []
        optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.01), local_layers=local)
        model.compile(optimizer, "mse")
        x = np.ones((32, 3), "float32")
        y = np.ones((32, 1), "float32")
        if how == "broadcast after the first step":
            for step in range(16):
                model.train_on_batch(x[:2], y[:2])
                if step == 0:
                    hvd.broadcast_variables(model.weights, root_rank=0)
        else:
            callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if how == "callback" else []
            model.fit(x, y, batch_size=2, epochs=2, verbose=0, callbacks=callbacks)
    finally:
        parameter_check.tell_user = usual
    return said


def test_rank_0_warns_about_different_weights_and_names_the_line_to_add(world: World) -> None:
    first, second = world.run(told_in_training, "no broadcast")
    ((rank, text),) = first
    assert rank == 0 and "hvd.callbacks.BroadcastGlobalVariablesCallback(0)" in text
    assert "FARANDOLE_CHECK_PARAMETERS=0" in text
    assert second == []


@pytest.mark.parametrize("how", ["callback", "broadcast after the first step", "local layers"])
def test_weights_that_are_broadcast_or_local_give_no_warning(world: World, how: str) -> None:
    assert world.run(told_in_training, how) == [[], []]
