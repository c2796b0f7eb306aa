"""The ops of the plugin library, in a world of two processes, in each of TensorFlow's ways of working.

What all front ends have in common is in the conformance suite, which runs eagerly, in functions and in sessions:
values, gradients, ranks that differ, and lost workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from worlds import Nursery, Worker, World, ship


@pytest.fixture(scope="module")
def world(tensorflow_nursery: Nursery) -> Iterator[World]:
    """Return a world that the tests of this module use one after the other."""
    world = World(tensorflow_nursery, 2)
    world.run(begin)
    yield world
    world.close()


@pytest.fixture
def worker(tensorflow_nursery: Nursery) -> Iterator[Worker]:
    """Return a process that is in no world yet."""
    worker = tensorflow_nursery.fork({"FARANDOLE_LISTEN": "127.0.0.1"})
    yield worker
    worker.close()


def begin() -> None:
    import farandole.tensorflow as hvd
    from farandole.tensorflow import ops
    from farandole.tensorflow.ops.plugin_ops import PluginOps

    hvd.init()
    assert isinstance(ops.chosen(), PluginOps)


def requests() -> int:
    """Return how many allreduces this worker has submitted."""
    import farandole.tensorflow as hvd

    return int(hvd.stats()["operations"]["allreduce"]["requests"])


def test_allreduces_of_one_function_are_in_flight_at_once(world: World) -> None:
    def run() -> tuple[list[float], int]:
        import tensorflow as tf

        import farandole.tensorflow as hvd

        # Were they run one after another, in the order of the trace, then the ranks would wait for each other forever.
        order = range(161) if hvd.rank() == 0 else range(160, -1, -1)

        @tf.function
        def reduce_all(tensor: Any) -> list[Any]:
            results = {i: hvd.allreduce(tensor * i, op=hvd.Sum, name=f"flight.{i}") for i in order}
            return [results[i] for i in range(161)]

        before = requests()
        return [float(result) for result in reduce_all(tf.ones([]))], requests() - before

    for results, count in world.run(run):
        assert results == [2.0 * i for i in range(161)]
        assert count == 161


def memory(what: str) -> int:
    """Return bytes of this process's memory: `VmRSS` is what it has now, `VmHWM` the most that it has had."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


def peak_of(call: Any) -> int:
    """Return the most bytes that this process has while a call lasts."""
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # VmHWM begins anew.
    call()
    return memory("VmHWM")


def test_a_reduction_is_done_in_place_where_nobody_else_uses_its_input(world: World) -> None:
    size = 48 << 20

    def run() -> list[float]:
        import tensorflow as tf

        import farandole.tensorflow as hvd

        tensor = tf.ones([size // 4])

        @tf.function(autograph=False)
        def reduce(users: int) -> Any:
            given = tensor + 1.0
            reduced = hvd.allreduce(given, name=f"place.{users}") if users else given
            with tf.control_dependencies([reduced]):
                return reduced[0] + (given[-1] if users == 2 else 0.0)

        before = memory("VmRSS")  # Whether memory of an earlier call is kept or given back makes no difference.
        return [(peak_of(lambda users=users: reduce(users)) - before) / size for users in range(3)]

    for alone, in_place, apart in world.run(run):
        assert alone > 0.9 and in_place < alone + 0.5 and apart > in_place + 0.5


def test_equal_calls_stay_two_and_constants_are_not_folded(world: World) -> None:
    def run() -> list[int]:
        import tensorflow as tf

        import farandole.tensorflow as hvd

        @tf.function
        def twice() -> Any:
            constant = tf.ones([2])
            return hvd.allreduce(constant, op=hvd.Sum) + hvd.allreduce(constant, op=hvd.Sum)

        counts = [requests()]
        for _ in range(3):
            assert twice().numpy().tolist() == [4.0, 4.0]
            counts.append(requests())
        return counts

    for counts in world.run(run):
        assert [after - before for before, after in itertools.pairwise(counts)] == [2, 2, 2]


def test_iterations_of_a_loop_that_run_side_by_side_match(world: World) -> None:
    def run() -> list[float]:
        import tensorflow as tf

        import farandole.tensorflow as hvd

        @tf.function
        def loop() -> Any:
            def body(i: Any, results: Any) -> Any:
                return i + 1, results.write(i, hvd.allreduce(tf.cast(i, tf.float32), op=hvd.Sum, name="loop"))

            start = (0, tf.TensorArray(tf.float32, 200))
            return tf.while_loop(lambda i, _: i < 200, body, start, parallel_iterations=10)[1].stack()

        return [float(value) for value in loop()]

    for values in world.run(run):
        assert values == [2.0 * i for i in range(200)]


def test_calls_of_one_name_in_several_threads_wait_for_each_other(world: World) -> None:
    def run() -> list[float]:
        import threading

        import tensorflow as tf

        import farandole.tensorflow as hvd

        reduce = tf.function(lambda tensor: hvd.allreduce(tensor, op=hvd.Sum, name="threads"))
        one = tf.ones([])
        results: list[float] = []
        threads = [
            threading.Thread(target=lambda: results.extend(float(reduce(one)) for _ in range(25))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        data = tf.data.Dataset.range(30).map(lambda _: hvd.allreduce(one, op=hvd.Sum, name="data"), 4)
        return results + [float(value) for value in data]

    for values in world.run(run):
        assert values == [2.0] * 130


def test_session_of_tensorflow_1_and_branches(world: World) -> None:
    def run() -> None:
        import tensorflow as tf

        import farandole.tensorflow as hvd

        with tf.compat.v1.Graph().as_default(), tf.compat.v1.Session() as session:
            constant = tf.constant([1.0, 2.0])
            results = [hvd.allreduce(constant, op=hvd.Sum), hvd.broadcast(tf.constant(hvd.rank()), 1), hvd.rank_op()]
            first, second, rank = session.run(results)
        assert first.tolist() == [2.0, 4.0] and second == 1 and rank == hvd.rank()

        @tf.function
        def branch(taken: Any) -> Any:
            return tf.cond(taken, lambda: hvd.allreduce(2.0, op=hvd.Sum, name="branch"), lambda: 0.0)

        assert float(branch(tf.constant(True))) == 4.0 and float(branch(tf.constant(False))) == 0.0

    world.run(run)


def test_a_collective_in_a_compiled_function_is_refused_in_a_sentence(world: World) -> None:
    def run() -> tuple[str, float]:
        import tensorflow as tf

        import farandole.tensorflow as hvd

        compiled = tf.function(lambda tensor: hvd.allreduce(tensor * 2, name="compiled"), jit_compile=True)
        part = tf.function(lambda tensor: tensor * 2, jit_compile=True)
        whole = tf.function(lambda tensor: hvd.allreduce(part(tensor), name="whole"))
        try:
            compiled(tf.ones([]))
        except tf.errors.InvalidArgumentError as error:
            return str(error), float(whole(tf.ones([])))
        raise AssertionError("no error")

    for message, result in world.run(run):
        assert "jit_compile=True" in message and "call the collective outside" in message
        assert result == 2.0


def test_questions_are_answered_when_they_are_run(world: World) -> None:
    def run() -> None:
        import tensorflow as tf

        import farandole.tensorflow as hvd

        only = hvd.add_process_set([1])
        size = tf.function(lambda: (hvd.size_op(only.process_set_id), hvd.process_set_included_op(only.process_set_id)))
        assert [int(number) for number in size()] == [1, hvd.rank()]
        assert int(hvd.size_op()) == int(hvd.local_size_op()) == 2
        assert int(hvd.rank_op()) == int(hvd.local_rank_op()) == hvd.rank()
        assert hvd.remove_process_set(only)
        with_error = None
        try:
            size()
        except tf.errors.InvalidArgumentError as error:
            with_error = error
        assert "there is no process set" in str(with_error)

    world.run(run)


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_process_set_that_is_not_there_is_a_mistake_of_the_script(world: World, in_graph: bool) -> None:
    def run(in_graph: bool) -> str:
        import tensorflow as tf

        import farandole.tensorflow as hvd

        made_up = hvd.ProcessSet([0])
        made_up.process_set_id = 10

        def reduce() -> Any:
            return hvd.allreduce(tf.ones([4]), process_set=made_up)

        try:
            (tf.function(reduce, autograph=False) if in_graph else reduce)()
        except ValueError as error:
            return str(error)
        raise AssertionError("no error")

    assert all("Process set provided does not exist" in each for each in world.run(run, in_graph))


@pytest.mark.parametrize("with_plugin", [True, False], ids=["plugin", "python"])
@pytest.mark.parametrize("in_graph", [False, True])
def test_gradients_have_the_type_of_the_tensor(world: World, in_graph: bool, with_plugin: bool) -> None:
    """TensorFlow gives zeros of float32 for results that are not used, and what the user passes may be float32, too."""

    def run(in_graph: bool, with_plugin: bool) -> dict[str, tuple[str, list[float]]]:
        import tensorflow as tf

        import farandole.tensorflow as hvd
        from farandole.tensorflow import ops

        of_plugin = ops._PLUGIN_OPS
        ops._PLUGIN_OPS = of_plugin if with_plugin else None

        def pair(x: Any) -> list[Any]:
            return [x, x * 2]

        calls = {
            "allreduce": lambda x: hvd.allreduce(x, op=hvd.Sum),
            "grouped_allreduce": lambda x: hvd.grouped_allreduce(pair(x), op=hvd.Sum)[0],
            "broadcast": lambda x: hvd.broadcast(x, 0),
            "allgather": lambda x: hvd.allgather(x),
            "grouped_allgather": lambda x: hvd.grouped_allgather(pair(x))[1],
            "alltoall": lambda x: hvd.alltoall(x),
            "alltoall with splits": lambda x: hvd.alltoall(x, splits=[1, 1])[0],
            "Min": lambda x: hvd.allreduce(x, op=hvd.Min),
            "reducescatter": lambda x: hvd.reducescatter(x),
            "grouped_reducescatter": lambda x: hvd.grouped_reducescatter(pair(x))[1],
        }

        def gradient(call: Any) -> Any:
            tensor = tf.constant([1.0, 2.0], tf.float64)
            with tf.GradientTape() as tape:
                tape.watch(tensor)
                result = call(tensor)
            return tape.gradient(result, tensor, tf.ones(tf.shape(result)))

        run_one = tf.function(gradient) if in_graph else gradient
        try:
            found = {name: run_one(call) for name, call in calls.items()}
        finally:
            ops._PLUGIN_OPS = of_plugin
        return {name: (result.dtype.name, result.numpy().tolist()) for name, result in found.items()}

    first, second = world.run(run, in_graph, with_plugin)
    factors = {"allreduce": 2.0, "grouped_allreduce": 2.0, "grouped_allgather": 2.0, "grouped_reducescatter": 2.0}
    assert first == {name: ("float64", [factors.get(name, 1.0)] * 2) for name in first}
    assert second == {**first, "broadcast": ("float64", [0.0, 0.0])}


@pytest.mark.parametrize("with_plugin", [True, False])
def test_gradients_of_a_function_are_right_after_the_world_changed(
    tensorflow_nursery: Nursery, with_plugin: bool
) -> None:
    """The function is traced in a world of two, and then each worker runs it in a world of one."""

    def run(with_plugin: bool) -> dict[str, list[float]]:
        import os

        import tensorflow as tf

        import farandole.tensorflow as hvd
        from farandole.tensorflow import ops

        if not with_plugin:
            ops._PLUGIN_OPS = None
        calls = {
            "allgather": lambda x: hvd.allgather(x),
            "Product": lambda x: hvd.allreduce(x, op=hvd.Product),
            "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum, prescale_factor=0.5),
            "reduce": lambda x: hvd.reduce(x, 0),
            "broadcast": lambda x: hvd.broadcast(x, 0),
        }

        @tf.function(autograph=False)
        def gradients(tensor: Any) -> dict[str, Any]:
            found = {}
            for name, call in calls.items():
                with tf.GradientTape() as tape:
                    tape.watch(tensor)
                    total = tf.reduce_sum(call(tensor))
                found[name] = tape.gradient(total, tensor)
            return found

        tensor = tf.constant([2.0, 3.0])
        hvd.init()
        gradients(tensor)
        hvd.shutdown()
        for name in ("FARANDOLE_ROSTER", "FARANDOLE_RANK", "FARANDOLE_SECRET"):
            del os.environ[name]
        hvd.init()
        assert hvd.size() == 1
        return {name: gradient.numpy().tolist() for name, gradient in gradients(tensor).items()}

    alone = {"allgather": 1.0, "Product": 1.0, "reducescatter": 0.5, "reduce": 1.0, "broadcast": 1.0}
    with World(tensorflow_nursery, 2) as world:
        assert world.run(run, with_plugin) == [{name: [value] * 2 for name, value in alone.items()}] * 2


def test_without_the_plugin_python_functions_are_taken_with_a_warning(worker: Worker) -> None:
    def run() -> tuple[list[str], float, bool]:
        import importlib
        import warnings

        import tensorflow as tf

        import farandole.tensorflow as hvd
        from farandole.tensorflow import ops, plugin

        tf.__version__ = "2.16.0"
        plugin._load.cache_clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            importlib.reload(ops)
        hvd.init()
        return [str(each.message) for each in caught], float(hvd.allreduce(3.0)), ops.chosen() is ops.python_ops

    ship(run)
    worker.send(run, ())
    (message,), result, is_python = worker.receive()
    assert "TensorFlow 2.16.0 is older than 2.17" in message
    assert result == 3.0 and is_python
