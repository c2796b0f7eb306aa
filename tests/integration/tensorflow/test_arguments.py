"""What users pass to collectives is converted and checked before the call has a name, eagerly and in graphs."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import Nursery, World


def test_lists_numbers_and_arrays_stand_for_tensors(tensorflow_nursery: Nursery) -> None:
    def run() -> None:
        import numpy as np
        import tensorflow as tf

        import farandole.tensorflow as hvd

        hvd.init()

        def reduced() -> list[Any]:
            slices = tf.IndexedSlices([[1.0, 2.0]], [0], [3, 2])
            grouped = hvd.grouped_allreduce([slices, [1.0], np.ones(2, np.float32), 3.0], op=hvd.Sum)
            return [
                tf.convert_to_tensor(hvd.allreduce(slices, op=hvd.Sum)),
                tf.convert_to_tensor(grouped[0]),
                *grouped[1:],
                hvd.allreduce(2.5, op=hvd.Max),
                hvd.reducescatter([[1.0], [2.0]], op=hvd.Sum),
                hvd.allgather([hvd.rank()]),
                hvd.broadcast(np.float64(hvd.rank()), 1),
                hvd.alltoall([1, 2], splits=[1, 1])[0],
            ]

        own_row = 2.0 * (hvd.rank() + 1)
        rows = [[2.0, 4.0], [0.0, 0.0], [0.0, 0.0]]
        wanted = [rows, rows, [2.0], [2.0, 2.0], 6.0, 2.5, [[own_row]], [0, 1], 1.0, [hvd.rank() + 1] * 2]
        for call in (reduced, tf.function(reduced)):
            for result, value in zip(call(), wanted, strict=True):
                np.testing.assert_array_equal(result.numpy(), value)
        hvd.shutdown()

    with World(tensorflow_nursery, 2) as world:
        world.run(run)


@pytest.mark.parametrize("in_graph", [False, True])
def test_wrong_arguments_are_refused_before_anything_is_sent(tensorflow_nursery: Nursery, in_graph: bool) -> None:
    """On rank 0 alone. The other rank gets nothing of these calls, so that the next ones match."""

    def run(in_graph: bool) -> None:
        import numpy as np
        import tensorflow as tf

        import farandole.tensorflow as hvd

        hvd.init()
        slices = tf.IndexedSlices([[1.0, 2.0]], [0])
        text = tf.constant(["text"])
        variable = tf.Variable([1.0])
        wrong = [
            (NotImplementedError, "Average and Sum only", lambda: hvd.allreduce(slices, op=hvd.Min)),
            (NotImplementedError, "Pre/postscale", lambda: hvd.allreduce(slices, prescale_factor=0.5)),
            (NotImplementedError, "Average and Sum only", lambda: hvd.grouped_allreduce([[1.0], slices], op=hvd.Min)),
            (ValueError, "broadcast_object", lambda: hvd.grouped_allreduce([slices, text])),
            (ValueError, "broadcast_object", lambda: hvd.allreduce(tf.IndexedSlices(["a"], [0]))),
            (ValueError, "broadcast_object", lambda: hvd.grouped_allgather([[1.0], text])),
            (ValueError, "got EagerTensor" if not in_graph else "writes over", lambda: hvd.broadcast_([text], 0)),
            (ValueError, "tensor.to_tensor()", lambda: hvd.allreduce(tf.ragged.constant([[1.0], [1.0, 2.0]]))),
            (ValueError, "tf.sparse.to_dense", lambda: hvd.allgather(tf.sparse.from_dense([1.0, 0.0]))),
            (
                ValueError,
                "broadcast_ takes a list of variables, but got dict",
                lambda: hvd.broadcast_({"": variable}, 0),
            ),
            (ValueError, "broadcast_ takes a list of variables", lambda: hvd.broadcast_(variable, 0)),
            (ValueError, "list of variables, but got", lambda: hvd.broadcast_variables([tf.constant([1.0])], 0)),
            (ValueError, "list of variables, but got Module", lambda: hvd.broadcast_variables(tf.Module(), 0)),
            (ValueError, "32-bit", lambda: hvd.alltoall([1.0, 2.0], splits=["x"])),
        ]
        run_it = tf.function(lambda call: call(), autograph=False) if in_graph else lambda call: call()
        for kind, words, call in wrong if hvd.rank() == 0 else []:
            try:
                run_it(call)
            except kind as error:
                assert words in str(error), error
            else:
                raise AssertionError(f"{words}: it was taken")
        np.testing.assert_array_equal(hvd.allreduce([1.0], op=hvd.Sum).numpy(), [2.0])
        if not in_graph:  # Its rows, as with NumPy.
            assert [float(row) for row in hvd.grouped_allreduce(tf.constant([1.0, 2.0]))] == [1.0, 2.0]
        hvd.shutdown()

    with World(tensorflow_nursery, 2) as world:
        world.run(run, in_graph)


def test_horovods_arguments_that_have_no_effect_are_taken(tensorflow_nursery: Nursery) -> None:
    def run() -> None:
        import tensorflow as tf

        import farandole.tensorflow as hvd

        hvd.init()
        rank = hvd.rank()
        variable = tf.Variable(1.0 + rank)
        with tf.GradientTape() as tape:
            square = variable * variable
        tape = hvd.DistributedGradientTape(tape)
        (gradient,) = tape.gradient(square, [variable], use_generic_names=True)
        assert float(gradient) == 3.0
        assert hvd.broadcast_object_fn(root_rank=1, session=None, name="fn")({"rank": rank}) == {"rank": 1}
        assert hvd.allgather_object(rank, session=None) == [0, 1]
        assert float(hvd.allreduce(1.0, device_dense="/cpu:0", device_sparse="/cpu:0", op=hvd.Sum)) == 2.0
        hvd.shutdown()

    with World(tensorflow_nursery, 2) as world:
        world.run(run)
