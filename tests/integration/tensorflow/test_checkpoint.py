"""Checkpoints of TensorFlow's variables: whole and exact again, or an error that says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kinds_of_state import check_same, plain_kinds
from worlds import Nursery, Worker, World


@pytest.fixture
def worker(tensorflow_nursery: Nursery) -> Iterator[Worker]:
    """Return a process that is in no world."""
    worker = tensorflow_nursery.fork({})
    yield worker
    worker.close()


def test_variables_come_back(worker: Worker, tmp_path: Path) -> None:
    def run(directory: str) -> list[str]:
        import keras
        import numpy as np
        import tensorflow as tf

        import farandole.tensorflow as hvd

        class Counter:
            def __init__(self, count: int) -> None:
                self.count = count

            def state_dict(self) -> dict[str, int]:
                return {"count": self.count}

            def load_state_dict(self, state: dict[str, int]) -> None:
                self.count = state["count"]

        def make(seed: int) -> dict[str, Any]:
            keras.utils.set_random_seed(seed)
            # The first layer's weights are split among ranks.
            layers = [keras.Input((2000,)), keras.layers.Dense(1100), keras.layers.BatchNormalization()]
            model = keras.Sequential(layers)
            optimizer = keras.optimizers.Adam(0.1 * seed)
            optimizer.build(model.trainable_variables)
            gradients = [tf.ones_like(variable) for variable in model.trainable_variables]
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            half = [tf.Variable(tf.fill([3], tf.constant(seed, tf.bfloat16))), tf.Variable(np.zeros((0, 2)))]
            return {
                "model": model,
                "optimizer": optimizer,
                "half": half,
                "counter": Counter(seed),
                "array": np.arange(4) + seed,
                "epoch": seed,
            }

        said: list[str] = []

        def say(level: str, line: str) -> None:
            said.append(line)

        saved, into = make(3), make(1)
        parts = [hvd.elastic.Checkpoint(directory, run="one", say=say) for _ in range(2)]
        for rank, part in enumerate(parts):
            assert part.save(saved, 7, rank=rank, size=2)
        assert all(part.wait(60) for part in parts)
        assert hvd.elastic.Checkpoint(directory, say=say).load(into) == 7
        assert (into["epoch"], into["counter"].count) == (3, 3)
        np.testing.assert_array_equal(into["array"], saved["array"])
        for name in ("model", "optimizer"):
            for mine, theirs in zip(into[name].variables, saved[name].variables, strict=True):
                np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
        for mine, theirs in zip(into["half"], saved["half"], strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine.numpy(), theirs.numpy())

        def refused(function: Any) -> None:
            with pytest.raises(Exception) as error:
                function()
            said.append(f"{type(error.value).__name__}: {error.value}")

        last = hvd.elastic.Checkpoint(directory)
        refused(lambda: last.load({"half": [tf.Variable([1.0], name="other")]}))
        refused(lambda: last.load({"array": np.arange(5)}))
        refused(lambda: last.load({"unknown": 1}))
        refused(lambda: last.save({"words": tf.Variable("text")}, 8, rank=0, size=1))
        refused(lambda: last.save({"thing": object()}, 8, rank=0, size=1))
        return said

    worker.send(run, (str(tmp_path),))
    said = worker.receive()
    expected = (
        "training resumes at step 7",
        "CheckpointError: half has the variables other:0 float32[1] here",
        "CheckpointError: array has the array int64[5] here",
        "CheckpointError",
        "holds text, which a checkpoint cannot",
        "an object of type object cannot be saved: pass a model",
    )
    for line, words in zip(said[-6:], expected, strict=True):
        assert words in line, line


def test_newcomers_get_every_type_of_variable(tensorflow_nursery: Nursery) -> None:
    def begin() -> None:
        import farandole.tensorflow as hvd

        hvd.init()

    def run() -> None:
        import numpy as np
        import tensorflow as tf

        import farandole.tensorflow as hvd
        from farandole.tensorflow.elastic.trained import Training

        class Noted:
            def state_dict(self) -> Any:
                return plain_kinds() if hvd.rank() == 0 else None

            def load_state_dict(self, state: Any) -> None:
                self.state = state

        rank = hvd.rank()
        variables = [
            tf.Variable(["some", "text" * rank]),
            tf.Variable(tf.cast([rank], tf.bfloat16)),
            tf.Variable(tf.constant([2**31 + rank], tf.uint32)),
            tf.Variable(tf.constant([1j + rank])),
        ]
        noted = Noted()
        Training({"variables": variables, "noted": noted}).transfer([0], [1], may_stream=False)
        wanted = [np.array([b"some", b""]), [0], [2**31], [1j]]
        for variable, values in zip(variables, wanted, strict=True):
            np.testing.assert_array_equal(np.array(variable.numpy()), values)
        if rank == 1:
            check_same(noted.state, plain_kinds())

    with World(tensorflow_nursery, 2) as world:
        world.run(begin)
        world.run(run)
