"""Optimizers, hooks and broadcasts of TensorFlow 1, in sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from worlds import Nursery, World, run_initialized, ship

RANKS = 2
MEAN = 1.5  # of rank + 1


@pytest.fixture(scope="module")
def world(tensorflow_nursery: Nursery) -> Iterator[World]:
    ship(in_a_session)
    world = World(tensorflow_nursery, RANKS)
    yield world
    world.close()


def run(world: World, body: Callable[..., Any], *args: Any) -> list[Any]:
    return run_initialized(world, "farandole.tensorflow", body, *args)


def in_a_session(hvd: Any, options: dict[str, Any], use_resource: bool, steps: int) -> Any:
    """Return the values of variables after some steps of gradient descent with gradients rank + 1, and global steps."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        dense = v1.get_variable("dense", initializer=[float(hvd.rank()), 0.0], use_resource=use_resource)
        rows = v1.get_variable("rows", initializer=tf.zeros([3, 1]), use_resource=use_resource)
        v1.get_variable("unused", initializer=1.0, use_resource=use_resource)
        global_step = v1.train.get_or_create_global_step()
        loss = (hvd.rank() + 1.0) * (tf.reduce_sum(dense) + tf.reduce_sum(tf.gather(rows, [hvd.rank()])))
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), **options)
        train = optimizer.minimize(loss, global_step=global_step)
        broadcast = hvd.broadcast_global_variables(0)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            session.run(broadcast)
            for _ in range(steps):
                session.run(train)
            dense_value, row_values, count = session.run([dense, rows, global_step])
            return dense_value.tolist(), row_values.ravel().tolist(), int(count)


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_an_optimizer_of_tensorflow_1_steps_with_the_mean(world: World, use_resource: bool) -> None:
    for found in run(world, in_a_session, {}, use_resource, 2):
        assert found == ([-2 * MEAN, -2 * MEAN], [-1.0, -2.0, 0.0], 2)


@pytest.mark.parametrize("average", [False, True], ids=["sum", "average"])
def test_passes_are_added_up_in_a_session(world: World, average: bool) -> None:
    options = {"backward_passes_per_step": 2, "sparse_as_dense": True, "average_aggregated_gradients": average}
    factor = 1.0 if average else 2.0
    # Five passes are two steps, and half of a third one.
    for found in run(world, in_a_session, options, True, 5):
        assert found == ([-2 * factor * MEAN] * 2, [-factor, -2 * factor, 0.0], 5)


def with_adasum(hvd: Any, passes: int, use_resource: bool) -> list[float]:
    """Return a variable after a step with changes of 1, 0 and 0, 2: right angles, so Adasum adds them."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        variable = v1.get_variable("variable", initializer=[5.0, 5.0], use_resource=use_resource)
        direction = [[-1.0, 0.0], [0.0, -2.0]][hvd.rank()]
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum, backward_passes_per_step=passes
        )
        train = optimizer.minimize(tf.reduce_sum(variable * direction))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _ in range(2 * passes):
                session.run(train)
            return session.run(variable).tolist()


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("passes", [1, 3])
def test_adasum_combines_changes(world: World, passes: int, use_resource: bool) -> None:
    for found in run(world, with_adasum, passes, use_resource):
        assert found == pytest.approx([5.0 + 2 * passes, 5.0 + 4 * passes])


def with_a_hook(hvd: Any) -> tuple[list[float], int]:
    """Train as scripts for TensorFlow 1 do, and return the variable and the steps."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        variable = v1.get_variable("variable", initializer=[float(hvd.rank() + 3)])
        global_step = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(v1.train.AdagradOptimizer(0.5))
        train = optimizer.minimize(tf.reduce_sum((hvd.rank() + 1.0) * variable), global_step=global_step)
        with tf.control_dependencies([train]):
            updated = variable.read_value()
        hooks = [hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=4)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            steps = 0
            while not session.should_stop():
                _, value = session.run([train, updated])
                steps += 1
    return value.tolist(), steps


def test_a_monitored_session_begins_alike_on_all_ranks(world: World) -> None:
    first, second = run(world, with_a_hook)
    assert first == second
    assert first[0][0] < 3.0 and first[1] == 4


def broadcast_in_a_session(hvd: Any, use_resource: bool) -> list[tuple[float, float]]:
    """Return what variables are after a broadcast in place, and what this returned."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [v1.Variable(hvd.rank() + start, use_resource=use_resource) for start in (1.0, 5.0)]
        results = hvd.broadcast_(variables, root_rank=1)
        assert [result.dtype for result in results] == [tf.float32] * 2
        session.run(v1.global_variables_initializer())
        received = session.run(results)
        return list(zip(map(float, session.run(variables)), map(float, received), strict=True))


@pytest.mark.parametrize("use_resource", [False, True])
def test_a_broadcast_in_place_returns_tensors_in_a_session(world: World, use_resource: bool) -> None:
    assert run(world, broadcast_in_a_session, use_resource) == [[(2.0, 2.0), (6.0, 6.0)]] * 2


def copied(hvd: Any, op: int) -> list[list[float]]:
    import copy
    import pickle

    import cloudpickle
    import tensorflow as tf

    after = []
    for way in (copy.copy, copy.deepcopy):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            variable = tf.compat.v1.get_variable("v", [1], initializer=tf.zeros_initializer())
            optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), op=op)
            step = way(optimizer).minimize(variable[0] * (hvd.rank() + 1.0))
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(step)
            after.append(session.run(variable).tolist())
    for pickled in (pickle.dumps, cloudpickle.dumps):
        with pytest.raises(ValueError, match="cannot be pickled"):
            pickled(optimizer)
    return after


@pytest.mark.parametrize("op", ["Average", "Adasum"])
def test_copy_of_an_optimizer_reduces_and_a_pickle_is_refused(world: World, op: str) -> None:
    def body(hvd: Any, op: str) -> list[list[float]]:
        return copied(hvd, getattr(hvd, op))

    assert run(world, body, op) == [[[-1.5], [-1.5]]] * 2
