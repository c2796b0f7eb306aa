"""Errors that come out of TensorFlow's graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worlds import Nursery, World, ship


def whose_loss() -> list[tuple[str, str, int | None]]:
    """Return TensorFlow's error, ours, and the lost rank behind it, of errors raised in graphs. Run by a worker."""
    import tensorflow as tf

    import farandole.tensorflow  # noqa: F401  (It says how its errors are read.)
    from farandole.errors import MismatchError, WorkerLostError, lost_rank_behind
    from farandole.tensorflow.errors import translate

    seen = []
    raised = (
        WorkerLostError("rank 3 was lost: its process ended", 3),
        MismatchError("rank 1 has another shape"),
        ValueError("the script's own, not a WorkerLostError"),
    )
    for error in raised:

        def fail(error: Exception = error) -> None:
            raise error

        try:
            tf.function(lambda: tf.numpy_function(fail, [], tf.float32))()
        except tf.errors.OpError as theirs:
            ours = translate(theirs)
            seen.append((type(theirs).__name__, "" if ours is None else repr(ours), lost_rank_behind(theirs)))
    return seen


def test_the_loss_of_a_rank_is_found_behind_an_error_of_a_graph(tensorflow_nursery: Nursery) -> None:
    ship(whose_loss)
    worker = tensorflow_nursery.fork({})
    try:
        worker.send(whose_loss, ())
        lost, mismatch, own = worker.receive()
    finally:
        worker.close()
    assert lost == ("UnknownError", "WorkerLostError('rank 3 was lost: its process ended')", 3)
    assert mismatch == ("UnknownError", "MismatchError('rank 1 has another shape')", None)
    assert own[1:] == ("", None)


def reduce_without_a_loop() -> list[list[float]]:
    """Reduce gradients of two types outside of a loop, eagerly and in a graph. Run by a worker."""
    import tensorflow as tf

    import farandole.tensorflow as hvd

    hvd.init()
    variables = [tf.Variable([1.0]), tf.Variable([1.0], dtype=tf.float64), tf.Variable([2.0]), tf.Variable([3.0])]

    def reduce() -> object:
        gradients = [None if index == 2 else variable * hvd.rank() for index, variable in enumerate(variables)]
        return hvd.elastic.reduce_gradients(gradients, variables)

    results = [reduce(), tf.function(reduce)()]
    hvd.shutdown()
    return [[-1.0 if each is None else float(each[0]) for each in result] for result in results]


def test_gradients_are_reduced_outside_of_a_loop(tensorflow_nursery: Nursery) -> None:
    world = World(tensorflow_nursery, 2)
    try:
        assert world.run(reduce_without_a_loop) == [[[0.5, 0.5, -1.0, 1.5]] * 2] * 2
    finally:
        world.close()


def wrong_places() -> list[str]:
    """Return what is said before init(), and in the scope of a strategy of TensorFlow's. Run by a worker."""
    import keras
    import tensorflow as tf

    import farandole.keras
    import farandole.tensorflow as hvd

    one, tape = tf.Variable(1.0), tf.GradientTape(persistent=True)
    with tape:
        loss = 2.0 * one
    said = []

    def refused(make: Callable[[], Any]) -> None:
        try:
            make()
        except ValueError as error:
            said.append(str(error))

    makers = (
        lambda: hvd.DistributedGradientTape(tape).gradient(loss, [one]),
        lambda: hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer()).apply_gradients([(one, one)]),
        lambda: farandole.keras.DistributedOptimizer(keras.optimizers.SGD()),
    )
    for make in makers:
        refused(make)
    hvd.init()
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        refused(makers[2])
    hvd.shutdown()
    return said


def test_before_init_and_under_a_strategy_of_tensorflow(tensorflow_nursery: Nursery) -> None:
    ship(wrong_places)
    worker = tensorflow_nursery.fork({"FARANDOLE_LISTEN": "127.0.0.1"})
    try:
        worker.send(wrong_places, ())
        said = worker.receive()
    finally:
        worker.close()
    assert (
        said[:3] == ["farandole has not been initialized; use hvd.init()."] * 3
    )  # No test there imports Horovod's name.
    (sentence,) = said[3:]
    assert "cannot be used under tf.distribute's CollectiveAllReduceStrategy" in sentence, sentence
    assert "outside of the strategy's scope" in sentence
