"""Gradients that tapes and optimizers of TensorFlow reduce, eagerly and in functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from worlds import Nursery, World, run_initialized, ship

RANKS = 2
MEAN = 1.5  # of rank + 1


@pytest.fixture(scope="module")
def world(tensorflow_nursery: Nursery) -> Iterator[World]:
    ship(test_a_tape_reduces)
    world = World(tensorflow_nursery, RANKS)
    yield world
    world.close()


def run(world: World, body: Callable[..., Any], *args: Any) -> list[Any]:
    return run_initialized(world, "farandole.tensorflow", body, *args)


def gradients_of_a_tape(hvd: Any, in_function: bool, options: dict[str, Any]) -> Any:
    """Return what a tape gives for a dense variable, a sparse one, one without gradient and one of another type."""
    import tensorflow as tf

    dense, rows, unused = tf.Variable([1.0, 2.0]), tf.Variable(tf.ones([4, 2])), tf.Variable(1.0)
    double = tf.Variable(2.0, dtype=tf.float64)
    mine = hvd.rank() + 1.0
    if "groups" in options and options["groups"] == "lists":
        options = {"groups": [[rows, dense], [unused]]}

    def step() -> Any:
        with tf.GradientTape() as tape:
            picked = tf.gather(rows, [hvd.rank(), 3])
            loss = mine * (tf.reduce_sum(dense) + tf.reduce_sum(picked)) + tf.cast(double, tf.float32) * mine
        tape = hvd.DistributedGradientTape(tape, **options)
        return tape.gradient(loss, [dense, rows, unused, double])

    found = (tf.function(step, autograph=False) if in_function else step)()
    assert found[2] is None
    is_sparse = isinstance(found[1], tf.IndexedSlices)
    return is_sparse, found[0].numpy(), tf.convert_to_tensor(found[1]).numpy(), float(found[3])


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({}, MEAN),
        ({"op": 1}, 2 * MEAN),
        ({"sparse_as_dense": True, "groups": 2}, MEAN),
        ({"gradient_predivide_factor": 2.0, "sparse_as_dense": True}, MEAN),
        ({"groups": "lists"}, MEAN),
    ],
    ids=["plain", "sum", "two groups", "predivide", "lists"],
)
def test_a_tape_reduces(world: World, in_function: bool, options: dict[str, Any], factor: float) -> None:
    import numpy as np

    for is_sparse, dense, rows, double in run(world, gradients_of_a_tape, in_function, options):
        assert is_sparse is not options.get("sparse_as_dense", False)
        np.testing.assert_allclose(dense, [factor, factor])
        each = factor / MEAN / RANKS
        np.testing.assert_allclose(rows, [[each, each], [2 * each, 2 * each], [0, 0], [3 * each, 3 * each]])
        assert double == factor


def with_a_gradient_missing(hvd: Any, in_function: bool, missing: str) -> tuple[str, list[Any]]:
    """Return what is said of one gradient or all that are None on the last rank only, and the next step's gradients."""
    import tensorflow as tf

    from farandole.tensorflow.errors import translate

    used, sometimes, never = tf.Variable([1.0]), tf.Variable([2.0, 3.0]), tf.Variable([4.0])
    mine = hvd.rank() + 1.0

    def step(with_all: bool) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.constant(mine) if missing == "all" and not (with_all or hvd.rank() == 0) else mine * used[0]
            if with_all or hvd.rank() == 0:
                loss += mine * tf.reduce_sum(sometimes)
        return hvd.DistributedGradientTape(tape).gradient(loss, [used, sometimes, never])

    run = tf.function(step, autograph=False) if in_function else step
    try:
        run(False)
    except tf.errors.FailedPreconditionError as error:
        found = run(True)
        return str(translate(error)), [None if each is None else each.numpy().tolist() for each in found]
    raise AssertionError("a gradient that one rank has not was reduced")


@pytest.mark.parametrize("missing", ["one", "all"])
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_a_gradient_that_one_rank_has_not_is_an_error_on_all(world: World, in_function: bool, missing: str) -> None:
    # Of several that are missing, the op that ran first is named.
    shapes = "2" if missing == "one" else "[12]"
    for why, then in run(world, with_a_gradient_missing, in_function, missing):
        assert re.search(rf"rank 0 sent a tensor of shape \[{shapes}\], but rank 1 sent a tensor of shape \[0\]", why)
        assert then == [[MEAN], [MEAN, MEAN], None]


def with_another_kind(hvd: Any, in_function: bool, kind: str) -> tuple[str, list[Any]]:
    """Return what is said if a gradient is sparse on rank 0 only, and one of a step in which it is so on all."""
    import tensorflow as tf

    from farandole.tensorflow.errors import translate

    used, rows = tf.Variable([1.0]), tf.Variable(tf.ones([4, 2]))

    def step(alike: bool) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(used)
            if alike or hvd.rank() == 0:
                loss += tf.reduce_sum(tf.gather(rows, [hvd.rank()]))
            elif kind == "dense":
                loss += tf.reduce_sum(rows)
        return hvd.DistributedGradientTape(tape).gradient(loss, [used, rows])

    run = tf.function(step, autograph=False) if in_function else step
    try:
        run(False)
    except tf.errors.FailedPreconditionError as error:
        found = run(True)
        return str(translate(error)), tf.convert_to_tensor(found[1]).numpy().tolist()
    raise AssertionError("gradients of different kinds were reduced")


@pytest.mark.parametrize(("kind", "shape"), [("dense", "[4, 2]"), ("missing", "[0]")])
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_a_gradient_that_is_sparse_on_one_rank_only_is_an_error_on_all(
    world: World, in_function: bool, kind: str, shape: str
) -> None:
    first, second = run(world, with_another_kind, in_function, kind)
    assert first == second
    assert f"rank 0 sent a tensor of shape [0, 0], but rank 1 sent a tensor of shape {shape}" in first[0]
    assert first[1] == [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0], [0.0, 0.0]]


def missing_without_a_tape(hvd: Any, in_loop: bool) -> tuple[str, list[Any]]:
    """Return what `reduce_gradients` says of a gradient that the last rank has not, and what it gives afterwards."""
    import keras
    import numpy as np
    import tensorflow as tf

    from farandole.errors import FarandoleError
    from farandole.tensorflow.errors import translate

    variables = [tf.Variable([0.0]), tf.Variable([0.0, 0.0]), tf.Variable([0.0])]
    mine = hvd.rank() + 1.0

    def step(with_all: bool) -> list[Any]:
        gradients = [tf.constant([mine]), tf.constant([mine, mine]) if with_all or hvd.rank() == 0 else None, None]
        return hvd.elastic.reduce_gradients(gradients, variables)

    def outcome() -> tuple[str, list[Any]]:
        try:
            step(False)
        except (tf.errors.OpError, FarandoleError) as error:
            found = step(True)
            why = error if isinstance(error, FarandoleError) else translate(error)
            return str(why), [None if each is None else each.numpy().tolist() for each in found]
        raise AssertionError("a gradient that one rank has not was reduced")

    if not in_loop:
        return outcome()
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(variables)
    loader = hvd.elastic.ElasticLoader(np.zeros([4, 1], np.float32), global_batch_size=4)
    for _ in hvd.elastic.steps(loader, epochs=1, variables=variables, optimizer=optimizer):
        found = outcome()
    return found


@pytest.mark.parametrize("in_loop", [False, True], ids=["outside of a loop", "in a loop"])
def test_without_a_tape_a_missing_gradient_is_an_error_on_all(world: World, in_loop: bool) -> None:
    first, second = run(world, missing_without_a_tape, in_loop)
    assert first == second
    assert "rank 0 sent a tensor of shape [2], but rank 1 sent a tensor of shape [0]" in first[0]
    assert first[1] == [[MEAN], [MEAN, MEAN], None]


def structures(hvd: Any) -> Any:
    """Return gradients of one source, of a tuple and of a mapping, of which some are local."""
    import tensorflow as tf

    one, two = tf.Variable(1.0), tf.Variable(2.0)
    mine = hvd.rank() + 1.0
    with tf.GradientTape(persistent=True) as plain:
        loss = mine * (one + two)
    tape = hvd.DistributedGradientTape(plain)
    tape.register_local_source(two)
    unscaled = hvd.DistributedGradientTape(plain, scale_local_gradients=False)
    unscaled.register_local_source(two)
    local, shared = tape.get_local_and_global_gradients(loss, [one, two])
    assert [source is two for source, _ in local] == [True] and [source is one for source, _ in shared] == [True]
    answers = (
        tape.gradient(loss, one),
        tape.gradient(loss, (one, two)),
        tape.gradient(loss, {"a": one, "b": two}),
        unscaled.gradient(loss, [two]),
        local[0][1],
    )
    return tf.nest.map_structure(float, answers)


def test_a_tape_keeps_structures_and_leaves_local_sources_alone(world: World) -> None:
    for rank, (one, pair, mapping, unscaled, local) in enumerate(run(world, structures)):
        own = rank + 1.0
        assert (one, pair, mapping) == (MEAN, [MEAN, own / RANKS], {"a": MEAN, "b": own / RANKS})
        assert (unscaled, local) == ([own], own / RANKS)


def two_tapes_in_one_function(hvd: Any) -> list[float]:
    """Return the gradients of two tapes, of which the ranks trace other branches and other functions before."""
    import tensorflow as tf

    one, two = tf.Variable(1.0), tf.Variable(2.0)

    @tf.function(autograph=False)
    def step(mine: Any, both: Any) -> Any:
        with tf.GradientTape() as first, tf.GradientTape() as second:
            loss, other = mine * one, 10.0 * mine * two
        (of_two,) = hvd.DistributedGradientTape(second).gradient(other, [two])
        of_one = tf.cond(
            both, lambda: hvd.DistributedGradientTape(first).gradient(loss, [one])[0], lambda: tf.constant(0.0)
        )
        return of_two, of_one

    mine = tf.constant(hvd.rank() + 1.0)
    if hvd.rank() == 1:  # A function that the other rank has not.
        tf.function(lambda value: value + 1.0, autograph=False)(mine)
    return [float(value) for _ in range(20) for value in step(mine, tf.constant(True))]


def test_tapes_in_one_function_are_not_mixed_up(world: World) -> None:
    for found in run(world, two_tapes_in_one_function):
        assert found == [10 * MEAN, MEAN] * 20


def wrong_tapes(hvd: Any) -> list[str]:
    """Return what is said about tapes that cannot be wrapped."""
    import keras
    import tensorflow as tf

    tape = tf.GradientTape()
    said = []
    for make in (
        lambda: hvd.DistributedGradientTape(hvd.DistributedGradientTape(tape)),
        lambda: hvd.DistributedGradientTape(keras.optimizers.SGD()),
        lambda: hvd.DistributedGradientTape(tape, op=hvd.Sum, gradient_predivide_factor=2.0),
        lambda: hvd.DistributedGradientTape(tape, groups=-1),
        lambda: hvd.PartialDistributedGradientTape(tape, local_layers=[tape]),
        lambda: hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer(), backward_passes_per_step=2),
        lambda: hvd.DistributedOptimizer(hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer())),
        lambda: hvd.DistributedOptimizer("sgd"),
        lambda: hvd.DistributedGradientTape(tape, compression="fp16"),
        lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), compression="fp16"),
    ):
        try:
            make()
        except ValueError as error:
            said.append(str(error))
    return said


def test_wrong_tapes_and_optimizers_are_refused(world: World) -> None:
    expected = (
        "a DistributedGradientTape already",
        "wraps a tf.GradientTape",
        "not supported with op != Average",
        "groups should be a positive integer",
        "All local layers must be of",
        "backward_passes_per_step > 1 is not yet supported",
        "a DistributedOptimizer already",
        "expected an optimizer of Keras",
        *["compression must be one of hvd.Compression, such as hvd.Compression.fp16, not 'fp16'"] * 2,
    )
    for said in run(world, wrong_tapes):
        assert len(said) == len(expected)
        for sentence, part in zip(said, expected, strict=True):
            assert part in sentence


def broadcasts(hvd: Any) -> Any:
    """Return variables that were broadcast in eager mode and in a function, and what was refused."""
    import tensorflow as tf

    values = [tf.Variable([1.0 * hvd.rank()]), tf.Variable(hvd.rank(), dtype=tf.int64)]
    hvd.broadcast_variables(values, root_rank=1)
    more = [tf.Variable([5.0 * hvd.rank()]), tf.Variable(hvd.rank() == 1)]

    @tf.function(autograph=False)
    def in_function() -> None:
        hvd.broadcast_variables(more, root_rank=1)

    in_function()
    refused = []
    for broadcast in (
        lambda: hvd.broadcast_global_variables(0),
        lambda: hvd.broadcast_variables(values[: hvd.rank() + 1], 0),
    ):
        try:
            broadcast()
        except (RuntimeError, ValueError) as error:
            refused.append(f"{type(error).__name__}: {error}")
    objects = hvd.broadcast_object({"rank": hvd.rank()}, root_rank=1, session=None, name="it")
    gathered = hvd.allgather_object(hvd.rank(), session=None)
    return [variable.numpy().tolist() for variable in [*values, *more]], refused, objects, gathered


def test_variables_and_objects_are_broadcast(world: World) -> None:
    for values, refused, objects, gathered in run(world, broadcasts):
        assert values == [[1.0], 1, [5.0], True]
        assert "RuntimeError: hvd.broadcast_global_variables() does not support eager" in refused[0]
        assert "rank 1 has 2 variables, and rank 0 has 1" in refused[1]
        assert (objects, gathered) == ({"rank": 1}, [0, 1])


def normalized(hvd: Any, rows: tuple[int, int]) -> Any:
    """Return this rank's part of a batch, normalized, its gradients, and what one worker computes of all."""
    import numpy as np
    import tensorflow as tf

    inputs = np.random.default_rng(3).normal(4.0, 2.0, (sum(rows), 3, 2)).astype("float32")
    begin = rows[0] * hvd.rank()
    own = inputs[begin : begin + rows[hvd.rank()]]
    shared, alone = hvd.SyncBatchNormalization(), tf.keras.layers.BatchNormalization()

    def train(layer: Any, batch: Any) -> Any:
        batch = tf.Variable(batch)
        with tf.GradientTape() as tape:
            outputs = layer(batch, training=True)
            loss = tf.reduce_sum(outputs**3)
        return outputs.numpy(), tape.gradient(loss, batch).numpy()

    mine, expected = train(shared, own), train(alone, inputs)
    part = slice(begin, begin + len(own))
    np.testing.assert_allclose(mine[0], expected[0][part], atol=1e-5)
    np.testing.assert_allclose(mine[1], expected[1][part], atol=1e-3)
    for one, other in zip(shared.weights, alone.weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5)
    copy = tf.keras.layers.deserialize(tf.keras.layers.serialize(shared))
    return type(copy).__name__


@pytest.mark.parametrize("rows", [(4, 4), (5, 2), (3, 0)])
def test_batch_normalization_is_of_all_rows(world: World, rows: tuple[int, int]) -> None:
    assert run(world, normalized, rows) == ["SyncBatchNormalization"] * RANKS


def what_is_added_to_graphs(hvd: Any) -> list[dict[str, int]]:
    """Return by how many ops the graphs of a tape and of `fit` differ from those without farandole, by their kinds."""
    from collections import Counter

    import keras
    import tensorflow as tf

    def kinds(function: Any) -> Counter[str]:
        graph = function.graph.as_graph_def()
        nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
        return Counter(node.op for node in nodes)

    def tape(wrap: Any) -> Counter[str]:
        variable = tf.Variable([1.0, 2.0])

        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * variable)
            return wrap(tape).gradient(loss, [variable])

        return kinds(tf.function(step, autograph=False).get_concrete_function())

    def fit(wrap: Any) -> Counter[str]:
        optimizer = wrap(keras.optimizers.SGD(0.1))
        variable = keras.Variable([1.0, 2.0])
        optimizer.build([variable])
        step = tf.function(lambda: optimizer.apply([tf.ones([2])], [variable]), autograph=False)
        return kinds(step.get_concrete_function())

    differences = []
    for graph, wrapped in ((tape, hvd.DistributedGradientTape), (fit, hvd.DistributedOptimizer)):
        plain, ours = graph(lambda thing: thing), graph(wrapped)
        assert plain
        differences.append(dict((ours - plain) + (plain - ours)))
    return differences


def test_alone_nothing_is_added_to_a_graph(tensorflow_nursery: Nursery) -> None:
    world = World(tensorflow_nursery, 1)
    assert run(world, what_is_added_to_graphs) == [[{}, {}]]
    world.close()


def gradients_of_a_set_and_of_all(hvd: Any, kind: str) -> Any:
    """Reduce first among ranks 0 and 2, then among all: what comes second has the same name on all ranks."""
    import keras
    import tensorflow as tf

    import farandole.keras

    only = hvd.add_process_set([0, 2])
    mine = hvd.rank() + 1.0
    if kind == "keras":
        results = []
        for chosen in (only, hvd.global_process_set):
            variable = keras.Variable([0.0])
            optimizer = farandole.keras.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=chosen)
            optimizer.apply([tf.constant([mine])], [variable])
            results.append(float(variable.numpy()[0]))
        return results
    variable = tf.Variable([1.0])

    @tf.function(autograph=False)
    def step() -> list[Any]:
        with tf.GradientTape(persistent=True) as tape:
            loss = mine * tf.reduce_sum(variable)
        of_set = hvd.DistributedGradientTape(tape, process_set=only).gradient(loss, [variable])
        of_all = hvd.DistributedGradientTape(tape).gradient(loss, [variable])
        return [*of_set, *of_all]

    return [-float(gradient[0]) for gradient in step()]


@pytest.mark.parametrize("kind", ["tape", "keras"])
def test_gradients_of_a_process_set_do_not_shift_the_names_of_others(tensorflow_nursery: Nursery, kind: str) -> None:
    ship(gradients_of_a_set_and_of_all)
    # A set of one rank reduces nothing, so that it takes three to have a rank outside of one that does.
    three = World(tensorflow_nursery, 3)
    try:
        found = run(three, gradients_of_a_set_and_of_all, kind)
    finally:
        three.close()
    assert found == [[-2.0, -2.0]] * 3
