"""Ranks that train different variables with a tape or an optimizer are reported, in eager mode and in functions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from worlds import Nursery, World


@pytest.fixture(scope="module", params=[1, 2, 3])
def world(tensorflow_nursery: Nursery, request: pytest.FixtureRequest) -> Iterator[World]:
    """Return a world that the tests of this module use one after the other."""
    world = World(tensorflow_nursery, request.param)
    world.run(begin)
    yield world
    world.close()


def begin() -> None:
    import farandole.tensorflow as hvd

    hvd.init()


def told_in_training(how: str, reducer: str = "tape", in_function: bool = False) -> list[tuple[int, str]]:
    """Return what the user is told, as (rank, text), in a training whose ranks begin with different variables."""
    import keras
    import tensorflow as tf

    import farandole.tensorflow as hvd
    from farandole.worker.gradients import parameter_check

    said: list[tuple[int, str]] = []
    usual, parameter_check.tell_user = parameter_check.tell_user, lambda level, text, rank: said.append((rank, text))
    kind = keras.Variable if reducer == "tape of keras" else tf.Variable
    weight, bias = kind([[hvd.rank() + 1.0]] * 3), kind([0.0])
    plain = tf.compat.v1.train.GradientDescentOptimizer(0.01)
    optimizer = hvd.DistributedOptimizer(plain) if reducer == "optimizer" else plain

    def loss() -> tf.Tensor:
        return tf.reduce_sum(tf.matmul(tf.ones([2, 3]), tf.convert_to_tensor(weight)) + tf.convert_to_tensor(bias))

    def step() -> None:
        if reducer == "optimizer":
            optimizer.minimize(loss, var_list=[bias, weight])
            return
        with tf.GradientTape() as tape:
            value = loss()
        tape = hvd.DistributedGradientTape(tape)
        if how == "local variable":
            tape.register_local_source(weight)
        for variable, gradient in zip([bias, weight], tape.gradient(value, [bias, weight]), strict=True):
            variable.assign(variable - 0.01 * gradient)

    step = tf.function(step, autograph=False) if in_function else step
    try:
        for number in range(16):
            step()
            if number == 0 and how == "broadcast after the first step":
                hvd.broadcast_variables([weight, bias], root_rank=0)
            hvd.allreduce(tf.ones([1]), name="step")  # So that the check, which was begun before it, has ended, too.
    finally:
        parameter_check.tell_user = usual
    return said


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("reducer", ["tape", "tape of keras", "optimizer"])
def test_rank_0_warns_about_different_variables_and_names_the_line_to_add(
    world: World, reducer: str, in_function: bool
) -> None:
    first, *others = world.run(told_in_training, "no broadcast", reducer, in_function)
    assert others == [[] for _ in others]
    if not others:
        assert first == []
        return
    ((rank, text),) = first
    assert rank == 0 and "hvd.broadcast_variables(model.variables, root_rank=0)" in text
    assert "FARANDOLE_CHECK_PARAMETERS=0" in text


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("how", ["broadcast after the first step", "local variable"])
def test_variables_that_are_broadcast_or_local_give_no_warning(world: World, how: str, in_function: bool) -> None:
    assert all(said == [] for said in world.run(told_in_training, how, "tape", in_function))


def test_check_can_be_switched_off(tensorflow_nursery: Nursery) -> None:
    world = World(tensorflow_nursery, 2, {"FARANDOLE_CHECK_PARAMETERS": "0"})
    world.run(begin)
    assert world.run(told_in_training, "no broadcast") == [[], []]
    assert world.run(told_in_training, "no broadcast", "tape", True) == [[], []]
    world.close()
