"""alltoall: splits, what is received, wrong splits, gradients. Values in every form are in test_forms.py."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.needs("alltoall")


def test_without_splits(world):
    """Equal parts, and the tensor alone as the result; the asynchronous form gives both in any case."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        for rows in (0, 1, 3):
            tensor = front.tensor(np.arange(size * rows * 2).reshape(size * rows, 2) + 100 * rank, "int64")
            parts = [np.arange(rank * rows * 2, (rank + 1) * rows * 2).reshape(rows, 2) for _ in range(size)]
            wanted = np.concatenate([part + 100 * sender for sender, part in enumerate(parts)])
            np.testing.assert_array_equal(front.array(hvd.alltoall(tensor)), wanted)
            if "handles" in front.has:
                output, received = hvd.synchronize(hvd.alltoall_async(tensor, name="later"))
                np.testing.assert_array_equal(front.array(output), wanted)
                assert (front.dtype(received), front.array(received).tolist()) == ("int32", [rows] * size)

    world.run(body)


@pytest.mark.needs("ragged")
def test_splits(world):
    """As a tensor, a list or an array; zeros; rows that are left over. What was received is told in int32."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()

        def sent(sender):
            return [(sender + 2 * receiver) % 4 for receiver in range(size)]

        tensor = front.tensor([[rank * 10.0 + row] for row in range(sum(sent(rank)) + 2)])
        rows = [
            [sender * 10.0 + row]
            for sender in range(size)
            for row in range(sum(sent(sender)[:rank]), sum(sent(sender)[: rank + 1]))
        ]
        wanted = np.array(rows).reshape(len(rows), 1)
        mine = sent(rank)
        for splits in (front.tensor(mine, "int32"), mine, tuple(mine), np.array(mine)):
            for output, received in (
                hvd.alltoall(tensor, splits),
                hvd.alltoall(tensor, splits=splits, name="named", process_set=hvd.global_process_set),
                *front.at_once([("alltoall", tensor, {"splits": splits})]),
            ):
                np.testing.assert_array_equal(front.array(output), wanted)
                assert front.dtype(received) == "int32"
                assert front.array(received).tolist() == [sent(sender)[rank] for sender in range(size)]
        nothing, received = hvd.alltoall(tensor, [0] * size)
        assert (tuple(nothing.shape), front.array(received).tolist()) == ((0, 1), [0] * size)
        nothing, _ = hvd.alltoall(front.tensor(np.zeros((0, 3))), [0] * size)
        assert tuple(nothing.shape) == (0, 3)

    world.run(body)


def test_large(world):
    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        rows = 300_007
        tensor = front.tensor(np.repeat(np.arange(size), rows) * 10 + rank, "int32")
        output = front.array(hvd.alltoall(tensor)).reshape(size, rows)
        assert (output == (rank * 10 + np.arange(size))[:, None]).all()

    world.run(body)


@pytest.mark.needs("ragged")
def test_wrong_splits(world):
    """ValueError at the call, on this rank alone; then a right call works."""

    def body(front):
        hvd = front.hvd
        size = hvd.size()
        tensor = front.tensor(np.zeros((size, 2)))
        wrong = {
            "1D splits": front.tensor(np.zeros((1, size)), "int32"),
            "32-bit integer ": front.tensor(np.zeros(size), "float32"),
            " 32-bit integer": [0.5] * size,
            "Sum of splits entries is greater": [2] * size,
            "does not equal number of workers": [0] * (size + 1),
            "negative": [-1] + [0] * (size - 1),
        }
        if "int32 splits" in front.has:
            wrong["32-bit integer"] = front.tensor(np.zeros(size), "int64")
        for words, splits in wrong.items():
            for call in (
                lambda splits: hvd.alltoall(tensor, splits),
                lambda splits: front.at_once([("alltoall", tensor, {"splits": splits})]),
            ):
                try:
                    call(splits)
                except ValueError as error:
                    assert words.strip() in str(error), error
                else:
                    raise AssertionError(f"{splits} were taken")
        if size > 1:
            try:
                hvd.alltoall(front.tensor(np.zeros(size + 1)))
            except ValueError as error:
                assert "splits not provided" in str(error)
            else:
                raise AssertionError("a first dimension that cannot be divided was taken")
        try:
            hvd.alltoall(front.tensor(1.0), [0] * size)
        except ValueError as error:
            assert "rank-zero" in str(error)
        else:
            raise AssertionError("a tensor without dimensions was taken")
        assert tuple(hvd.alltoall(tensor).shape) == (size, 2)

    world.run(body)


@pytest.mark.needs("gradients", "ragged gradients")
def test_gradient(world):
    """Gradients go back the way the rows came; what was not sent has none."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        splits = [receiver + 1 for receiver in range(size)]
        rows = sum(splits)
        weight = rank + 1.0
        for left_over in (0, 2):
            gradient = front.gradient(
                lambda tensor: front.sum(hvd.alltoall(tensor, splits)[0] * weight), np.ones((rows + left_over, 3))
            )
            wanted = np.repeat([receiver + 1.0 for receiver in range(size)], splits)
            wanted = np.concatenate([wanted, np.zeros(left_over)])
            np.testing.assert_allclose(gradient, np.repeat(wanted[:, None], 3, axis=1))
        gradient = front.gradient(lambda tensor: front.sum(hvd.alltoall(tensor) * weight), np.ones(size))
        np.testing.assert_allclose(gradient, np.arange(size) + 1.0)

    world.run(body)
