"""TensorFlow in worlds of real processes that lose workers: the loop of steps, and Horovod's way."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_worlds import ElasticJob
from tensorflow_trainings import check, train
from worlds import Nursery, Worker, WorkerFailed, World, ship


@pytest.fixture(scope="module")
def nursery(tensorflow_nursery: Nursery) -> Nursery:
    """Return what forks workers that have TensorFlow."""
    return tensorflow_nursery


@pytest.fixture(scope="module")
def alone(nursery: Nursery) -> Iterator[Worker]:
    """Return a process that takes steps alone."""
    worker = nursery.fork({})
    ship(train)
    yield worker
    worker.close()


def run(job: ElasticJob, options: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a training to its end, and return what the workers say that were not to die."""
    workers = job.add(count)
    job.start(train, options)
    return job.collect_survivors(workers, options.get("deaths", ()))


@pytest.mark.parametrize("size", [1, 3])
def test_an_undisturbed_training_is_that_of_a_fixed_job_bit_by_bit(
    nursery: Nursery, make_job: Callable[..., ElasticJob], alone: Worker, size: int
) -> None:
    options = {"optimizer": "adam", "calls": True}
    elastic = run(make_job(), options, size)
    check(elastic, options, alone)
    world = World(nursery, size)
    try:
        # Here nobody gives the state to the others, so they begin alike.
        fixed = world.run(train, options | {"strangers": False})
    finally:
        world.close()
    check([*fixed, *elastic], options, alone)


KINDS: dict[str, dict[str, Any]] = {
    "eager, dies before the step": {"function": False, "deaths": {1: (1, "begin")}},
    "with gradients": {"optimizer": "adam", "calls": True, "deaths": {0: (1, "backward"), 2: (3, "after step")}},
    "a pipeline and few samples": {"pipeline": True, "batch": {"global_batch_size": 2}, "deaths": {1: (2, "backward")}},
    "samples of each worker": {"batch": {"batch_size": 2}, "pipeline": True, "deaths": {2: (1, "backward")}},
}


@pytest.mark.parametrize("name", KINDS)
def test_trainings_survive_workers(name: str, make_job: Callable[..., ElasticJob], alone: Worker) -> None:
    options = KINDS[name]
    check(run(make_job(), options, 4), options, alone)


@pytest.mark.parametrize("seed", range(2))
def test_workers_are_lost_and_join_at_random(seed: int, make_job: Callable[..., ElasticJob], alone: Worker) -> None:
    dice = random.Random(seed)
    count = dice.randint(1, 4)
    deaths = {
        worker: (dice.randrange(8), dice.choice(["begin", "backward", "after step"]))
        for worker in dice.sample(range(count), dice.randrange(count))
    }
    coming = dice.randint(0, 2)
    # A step waits for the newcomers: how soon they come is up to chance.
    step = dice.randrange(2, 7)
    size = count + coming - sum(1 for died, _ in deaths.values() if died <= step)
    options = {
        "optimizer": dice.choice(["sgd", "adam"]),
        "pipeline": dice.random() < 0.5,
        "function": dice.random() < 0.7,
        "calls": dice.random() < 0.5,
        "batch": {"global_batch_size": dice.choice([2, 5, 6])},
        "deaths": deaths,
        "waits": {step: size} if coming else {},
        "epochs": 4,
    }
    job = make_job()
    workers = job.add(count)
    job.start(train, options)
    workers += job.add(coming)
    if coming:
        job.start(train, options, workers=workers[count:])
    check(job.collect_survivors(workers, deaths), options, alone)


@pytest.mark.parametrize("step", [0, 2])
def test_a_rank_without_reduced_gradients_gets_them_from_the_others(
    step: int, make_job: Callable[..., ElasticJob], alone: Worker, tmp_path: Path
) -> None:
    lag = {"step": step, "dies": 0, "lags": 2, "got": str(tmp_path / "got")}
    options = {"optimizer": "adam", "lag": lag, "deaths": {0: None}}
    results = run(make_job(), options, 3)
    assert [result["handed over"] for result in results] == [False, True]
    check(results, options, alone)


def test_the_rate_follows_when_a_worker_is_killed_and_replaced(
    make_job: Callable[..., ElasticJob], alone: Worker
) -> None:
    from farandole.worker.elastic.batches import LinearScaling

    # Steps 3 and 5 wait until newcomers are there, which have other variables before they get the state.
    job, options = make_job(), {"batch": {"batch_size": 2}, "rate": LinearScaling(), "optimizer": "adam"}
    options |= {"epochs": 3, "waits": {3: 3, 5: 4}, "deaths": {1: (1, "backward"), 3: (6, "begin")}, "pipeline": True}
    workers = job.add(3)
    job.start(train, options)
    job.workers[1].wait(60)
    workers += job.add(1)
    job.start(train, options | {"deaths": {3: (6, "begin")}}, workers=workers[3:])
    workers += job.add(1)
    job.start(train, options, workers=workers[4:])
    results = job.collect_survivors(workers, [1, 3])
    check(results, options, alone)
    assert len(set(results[0]["rates"].values())) > 1
    assert results[-1]["used"].keys() < results[0]["used"].keys()


@pytest.mark.parametrize("deaths", [{}, {0: (5, "backward")}])
def test_the_batch_follows_a_scheduler_and_the_rate_the_batch(
    make_job: Callable[..., ElasticJob], alone: Worker, deaths: dict[int, Any]
) -> None:
    adaptive = {"min": 4, "max": 11, "every": 2, "rate": "linear"}
    options = {"epochs": 4, "adaptive": adaptive, "deaths": deaths, "pipeline": True}
    job = make_job()
    job.tell(job.service.schedule_batch, 6)
    results = run(job, options, 3)
    check(results, options, alone)
    assert len({result["adaptation"] for result in results}) == 1
    adaptation = results[0]["adaptation"]
    assert adaptation.batch == 6 and adaptation.measured > 3 and adaptation.noise.is_known
    assert results[0]["rates"][0] == pytest.approx(0.05)
    assert max(results[0]["rates"].values()) == pytest.approx(0.05 * 6 / 4)


def resume(directory: str, stops_at: int | None) -> tuple[int, list[float]]:
    """Train, with a checkpoint of each step; return with which step this worker began, and the weights."""
    import keras
    import numpy as np
    import tensorflow as tf

    import farandole.tensorflow as hvd

    hvd.init()
    weights, optimizer = tf.Variable([0.0, 0.0]), keras.optimizers.SGD(0.1, momentum=0.9)
    samples = np.random.default_rng(1).normal(size=(40, 2)).astype(np.float32)
    loader = hvd.elastic.ElasticLoader(samples, global_batch_size=4)
    checkpoint = hvd.elastic.Checkpoint(directory, every_steps=1, wait_if_busy=True, run=f"until{stops_at}")
    optimizer.build([weights])
    loop = hvd.elastic.steps(loader, epochs=2, checkpoint=checkpoint, weights=weights, optimizer=optimizer)
    begun = None
    for x in loop:
        begun = loop.step if begun is None else begun
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - tf.reduce_sum(x, 1)) ** 2)
        gradients = hvd.elastic.reduce_gradients(tape.gradient(loss, [weights]), [weights])
        optimizer.apply_gradients(zip(gradients, [weights], strict=True))
        if loop.step == stops_at:
            loop.stop()
    assert begun is not None
    hvd.shutdown()
    return begun, weights.numpy().tolist()


def test_a_training_that_has_stopped_goes_on_from_its_checkpoint(nursery: Nursery, tmp_path: Path) -> None:
    """In a world of another size, to the parameters of one that was never stopped."""

    def train_in(size: int, directory: Path, stops_at: int | None) -> list[tuple[int, list[float]]]:
        world = World(nursery, size, {"FARANDOLE_RESUME": "auto"})
        try:
            return list(world.run(resume, str(directory), stops_at))
        finally:
            world.close()

    (_, wanted), _ = train_in(2, tmp_path / "whole", None)
    train_in(2, tmp_path / "parts", 12)
    ((begun, weights),) = train_in(1, tmp_path / "parts", None)
    assert begun in (13, 14)  # All agree on where to stop, a step later.
    assert weights == pytest.approx(wanted, rel=1e-4)


# --- Horovod's way ----------------------------------------------------------------------------------------------------


def states_are_synced(eager: bool) -> list[Any]:
    """Make, change, commit and sync a `TensorFlowState`. Run by a worker."""
    import contextlib

    import numpy as np
    import tensorflow as tf

    import farandole.tensorflow as hvd

    if not eager:
        tf.compat.v1.disable_eager_execution()
    hvd.init()
    seen = []
    with contextlib.nullcontext() if eager else tf.compat.v1.Session() as session:
        variables = [tf.Variable(np.full((2, 2), hvd.rank() + 1.0)), tf.Variable(np.int64(hvd.rank() + 5))]
        two = None if eager else [variable.initializer for variable in variables]
        if not eager:
            session.run(two)
        state = hvd.elastic.TensorFlowState(variables, session=session, batch=20 + hvd.rank())

        def note() -> None:
            values = [each.numpy() for each in variables] if eager else session.run(variables)
            seen.append(([value.tolist() for value in values], state.batch))

        if not eager:
            session.graph.finalize()
        for _ in range(2):  # The second time shows that not only the first sync works.
            state.sync()
            note()
            state._write([np.full((2, 2), 9.0 + hvd.rank()), np.int64(3)])
            state.batch = 21
            note()
            state.restore()
            note()
            state._write([np.full((2, 2), 30.0 + hvd.rank()), np.int64(4)])
            state.save()
    hvd.shutdown()
    return seen


@pytest.mark.parametrize("eager", [True, False])
def test_a_state_is_synced_restored_and_synced_again(nursery: Nursery, eager: bool) -> None:
    world = World(nursery, 2)
    try:
        first, second = world.run(states_are_synced, eager)
    finally:
        world.close()
    begin, again = ([[[1.0, 1.0]] * 2, 5], 20), ([[[30.0, 30.0]] * 2, 4], 20)
    changed = [([[[9.0 + rank] * 2] * 2, 3], 21) for rank in range(2)]
    assert first == [begin, changed[0], begin, again, changed[0], again]
    assert second == [begin, changed[1], begin, again, changed[1], again]


def train_as_with_horovod(options: dict[str, Any]) -> dict[str, Any]:
    """Train by `hvd.elastic.run`, and die where the options say so. Run by a worker."""
    import time

    import keras
    import numpy as np
    import tensorflow as tf

    import farandole.tensorflow as hvd
    from farandole.worker.core.basics import current

    hvd.init()
    worker = current().settings.rank
    keras.utils.set_random_seed(worker)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    @tf.function
    def train_one_batch(x: object) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = [hvd.allreduce(each, name=f"gradient.{index}") for index, each in enumerate(gradients)]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    sizes: list[int] = []
    resets: list[int] = []

    @hvd.elastic.run
    def train(state: Any) -> str:
        for batch in range(state.batch, options["batches"]):
            state.batch = batch
            if (worker, state.batch) == options["dies"]:
                os.kill(os.getpid(), signal.SIGKILL)
            train_one_batch(tf.ones((4, 3)))
            sizes.append(hvd.size())
            # What happens is to happen before the end.
            while state.batch == options["waits at"] and hvd.size() < options["size"] and state._host_messages.empty():
                time.sleep(0.01)
            if state.batch % 2:
                state.commit()
        if options.get("fails"):
            tf.debugging.assert_equal(1, 2, message="the script's own")
        return "done"

    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    result = train(state)
    return {
        "result": result,
        "sizes": sizes,
        "resets": resets,
        "values": [np.array(variable.numpy()) for variable in [*model.variables, *optimizer.variables]],
    }


def test_the_decorator_continues_after_a_worker_is_killed_and_replaced(
    make_job: Callable[..., ElasticJob],
) -> None:
    import numpy as np

    job, options = make_job(), {"batches": 12, "dies": (1, 3), "waits at": 7, "size": 3}
    workers = job.add(3)
    job.start(train_as_with_horovod, options)
    job.workers[1].wait(60)
    workers += job.add(1)
    job.start(train_as_with_horovod, options, workers=workers[3:])
    results = job.collect_survivors(workers, [1])
    assert [result["result"] for result in results] == ["done"] * 3
    assert all(result["sizes"][-1] == 3 for result in results)
    assert results[0]["resets"] in ([2, 3], [3])
    for result in results:
        for mine, first in zip(result["values"], results[0]["values"], strict=True):
            np.testing.assert_array_equal(mine, first)
    # The optimizer's steps: this script does the batch of its last commit once more after each reset.
    assert results[0]["values"][2] == 12 + len(results[0]["resets"])


def test_errors_of_the_script_are_raised_unchanged(make_job: Callable[..., ElasticJob]) -> None:
    job, options = make_job(), {"batches": 2, "dies": None, "waits at": None, "fails": True}
    workers = job.add(1)
    job.start(train_as_with_horovod, options)
    with pytest.raises(WorkerFailed, match="the script's own"):
        job.collect(workers)


def test_a_model_without_variables_is_refused(nursery: Nursery) -> None:
    def make() -> str:
        import keras

        import farandole.tensorflow as hvd

        hvd.init()
        try:
            hvd.elastic.TensorFlowKerasState(keras.Sequential([keras.layers.Dense(2)]), keras.optimizers.SGD())
        except ValueError as error:
            return str(error)
        finally:
            hvd.shutdown()
        return "it was taken"

    worker = nursery.fork({})
    try:
        worker.send(make, ())
        assert "must be built" in worker.receive()
    finally:
        worker.close()
