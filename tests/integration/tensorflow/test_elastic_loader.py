"""What TensorFlow's elastic loader gives out, and what the loop of steps refuses."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import Nursery, ship


def load_all_kinds() -> None:
    """Read by arrays, sequences and functions of indices. Run by a worker."""
    import time

    import numpy as np
    import tensorflow as tf

    from farandole.tensorflow.elastic import ElasticLoader

    class Squares:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"number": index, "square": np.float32([index * index])}

    arrays = ElasticLoader({"x": np.arange(8), "y": (tf.range(8) * 2,)}, batch_size=2, shuffle=False)
    batch = arrays.next(2, 1)
    assert batch is not None
    assert (batch.samples, batch.total) == (2, 4)
    assert batch.data["x"].numpy().tolist() == [2, 3]
    assert batch.data["y"][0].numpy().tolist() == [4, 6]
    assert arrays.next(2, 1) is batch
    arrays.commit(batch, lost=[0])
    again = arrays.next(1, 0)
    assert again is not None
    assert again.data["x"].numpy().tolist() == [0, 1]  # What the lost rank read comes first.

    sequence = ElasticLoader(Squares(), global_batch_size=2, shuffle=False)
    batch = sequence.next(3, 2)
    assert batch is not None
    assert batch.data is None
    assert sequence.borrow(batch)["square"].numpy().tolist() == [[0.0], [1.0]]

    class Ranges:
        def __len__(self) -> int:
            return 20

        def farandole_read(self, ranges: Any) -> dict[str, Any]:
            return {"x": np.concatenate([np.arange(*each) for each in ranges])}

    ranged = ElasticLoader(Ranges(), batch_size=2)
    batch = ranged.next(2, 1)
    assert batch is not None
    assert batch.data["x"].numpy().tolist() == [2, 3]
    assert ranged.borrow(batch)["x"].numpy().tolist() == [0, 1]

    asked: list[int] = []

    def load(indices: object) -> object:
        def note(given: object) -> object:
            asked.append(len(given))
            return given

        return tf.numpy_function(note, [indices], tf.int64)

    piped = ElasticLoader(50, load=load, batch_size=5, seed=3, num_parallel_calls=1)
    seen: list[int] = []
    for size, lost in ((2, ()), (2, ()), (2, (1,)), (1, ()), (3, ())):
        batch = piped.next(size, 0)
        assert batch is not None
        seen += batch.data.numpy().tolist()
        wanted = batch.ledger.indices(batch.shares[0])
        assert batch.data.numpy().tolist() == wanted
        piped.commit(batch, lost)
    assert len(set(seen)) == len(seen) == 25
    piped.next_epoch()
    batch = piped.next(1, 0)
    assert batch is not None
    assert batch.data.numpy().tolist() == batch.ledger.indices(batch.shares[0])
    deadline = time.monotonic() + 30
    while len(asked) <= 6 and time.monotonic() < deadline:  # It reads ahead.
        time.sleep(0.01)
    assert len(asked) > 6
    try:
        piped.ledger = arrays.ledger
    except ValueError as error:
        assert "50" in str(error)
    else:
        raise AssertionError("a ledger of other samples was taken")


def wrong_ways() -> dict[str, str]:
    """Return what is said to users who go wrong. Run by a worker."""
    import keras
    import numpy as np
    import tensorflow as tf

    import farandole.tensorflow as hvd

    said: dict[str, str] = {}

    def fails(name: str, call: Any) -> None:
        try:
            call()
        except ValueError as error:
            said[name] = str(error)
        except TypeError as error:
            said[name] = f"an error of TensorFlow: {error}"
        else:
            said[name] = "it was taken"

    def loader() -> Any:
        return hvd.elastic.ElasticLoader((np.ones((4, 3), np.float32),), batch_size=2)

    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
    steps, variables = hvd.elastic.steps, model.trainable_variables
    fails("before init", lambda: steps(loader(), model=model))
    hvd.init()
    fails("dataset", lambda: hvd.elastic.ElasticLoader(tf.data.Dataset.range(3), batch_size=1))
    fails("only a number", lambda: hvd.elastic.ElasticLoader(3, batch_size=1))
    fails("unequal", lambda: hvd.elastic.ElasticLoader((np.ones(3), np.ones(4)), batch_size=1))
    fails("no batch", lambda: hvd.elastic.ElasticLoader(np.ones(3)))
    for wrong in ({"load": [1]}, {"num_parallel_calls": "2"}, {"prefetch": 1.5}):
        load = {"load": lambda ids: ids, **wrong}
        fails(next(iter(wrong)), lambda load=load: hvd.elastic.ElasticLoader(3, batch_size=1, **load))
    fails("not built", lambda: steps(loader(), model=keras.Sequential([keras.layers.Dense(1)])))
    fails("no state", lambda: steps(loader(), epoch=3))
    fails("late variables", lambda: steps(loader(), optimizer=tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)))

    def forget() -> None:
        for (x,) in steps(loader(), model=model, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x))
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    fails("forgets", forget)
    decay = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))
    double = hvd.elastic.ScaledBy(lambda batch, size: 2.0)
    fails("schedule", lambda: next(iter(steps(loader(), model=model, optimizer=decay, rate=double))))
    fails("one missing", lambda: hvd.elastic.reduce_gradients([tf.ones(1)], variables))
    fails("Adasum", lambda: hvd.elastic.reduce_gradients([tf.ones(1)], variables[:1], op=hvd.Adasum))
    rows = tf.IndexedSlices(tf.ones((1,)), tf.constant([0]), tf.constant([2]))
    nothing, dense = hvd.elastic.reduce_gradients([None, rows], variables)
    assert nothing is None
    assert dense.numpy().tolist() == [1.0, 0.0]
    hvd.shutdown()
    return said


@pytest.fixture(scope="module")
def said(tensorflow_nursery: Nursery) -> dict[str, str]:
    ship(wrong_ways)
    worker = tensorflow_nursery.fork({})
    try:
        worker.send(wrong_ways, ())
        return dict(worker.receive())
    finally:
        worker.close()


@pytest.mark.parametrize(
    ("name", "what"),
    {
        "before init": "use hvd.init()",
        "dataset": "load=lambda ids",
        "only a number": "with load=lambda ids",
        "unequal": "as many rows as there are samples",
        "no batch": "needs either batch_size",
        "load": "load must be a function, but is [1]",
        "num_parallel_calls": "num_parallel_calls must be a whole number from -1 up, but is '2'",
        "prefetch": "prefetch must be a whole number from -1 up, but is 1.5",
        "not built": "model must be built first",
        "no state": "epoch=3 has neither variables nor state_dict",
        "late variables": "Use an optimizer of Keras",
        "forgets": "reduced no gradients",
        "schedule": "is a schedule",
        "one missing": "1 gradients of 2 variables",
        "Adasum": "cannot reduce with Adasum",
    }.items(),
)
def test_wrong_command_lines_are_refused_with_hint(said: dict[str, str], name: str, what: str) -> None:
    assert what in said[name]


def test_each_rank_reads_what_the_ledger_says(tensorflow_nursery: Nursery) -> None:
    ship(load_all_kinds)
    worker = tensorflow_nursery.fork({})
    try:
        worker.send(load_all_kinds, ())
        worker.receive()
    finally:
        worker.close()
