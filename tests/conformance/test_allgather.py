"""allgather: unequal first dimensions, every element type, gradients, objects."""

from __future__ import annotations

import numpy as np
import pytest
from frontends import DTYPES


@pytest.mark.needs("ragged")
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_values(world, dtype):
    """Rows come in rank order; ranks may give different numbers of rows, also none."""

    def body(front):
        hvd = front.hvd

        def mine(rank, rows, tail):
            return (np.arange(rows * int(np.prod(tail))).reshape(rows, *tail) + rank) % 2

        for tail in ((), (3,), (2, 5), (0,)):
            for rows_of in (lambda rank: 2, lambda rank: rank, lambda rank: 3 * (rank % 2), lambda rank: 0):
                wanted = np.concatenate([mine(rank, rows_of(rank), tail) for rank in range(hvd.size())])
                tensor = front.tensor(mine(hvd.rank(), rows_of(hvd.rank()), tail), dtype)
                for result in (hvd.allgather(tensor), *front.at_once([("allgather", tensor, {})])):
                    assert front.dtype(result) == dtype
                    np.testing.assert_array_equal(front.array(result), wanted.astype(DTYPES[dtype]))

    world.run(body)


@pytest.mark.needs("ragged")
def test_large(world):
    def body(front):
        hvd = front.hvd
        rows = 100_003 + hvd.rank()
        result = front.array(hvd.allgather(front.tensor(np.full((rows, 10), hvd.rank()), "int32")))
        edges = np.cumsum([0] + [100_003 + rank for rank in range(hvd.size())])
        for rank in range(hvd.size()):
            assert (result[edges[rank] : edges[rank + 1]] == rank).all()
        assert result.shape == (edges[-1], 10)

    world.run(body)


@pytest.mark.needs("grouped", "ragged")
def test_grouped(world):
    def body(front):
        hvd = front.hvd
        tensors = [front.tensor([[hvd.rank()] * 2] * (hvd.rank() + index), "int64") for index in (1, 2)]
        tensors.append(front.tensor([hvd.rank() / 2], "float64"))
        forms = [hvd.grouped_allgather(tensors), *front.at_once([("grouped_allgather", tensors, {"name": "three"})])]
        for results in forms:
            for index, result in zip((1, 2), results, strict=False):
                wanted = [[rank] * 2 for rank in range(hvd.size()) for _ in range(rank + index)]
                np.testing.assert_array_equal(front.array(result), wanted)
            np.testing.assert_array_equal(front.array(results[2]), np.arange(hvd.size()) / 2)

    world.run(body)


@pytest.mark.needs("gradients", "ragged gradients")
def test_gradient(world):
    """Each rank gets the average of the gradients for the rows it gave."""

    def body(front):
        hvd = front.hvd
        rank, size = hvd.rank(), hvd.size()
        total = sum(range(1, size + 1))
        scale = np.arange(total, dtype=np.float64).reshape(total, 1) * (rank + 1)
        gradient = front.gradient(
            lambda tensor: front.sum(hvd.allgather(tensor) * front.tensor(scale, "float64")), np.ones((rank + 1, 2))
        )
        begin = sum(range(1, rank + 1))
        mean = np.arange(total, dtype=np.float64) * total / size
        wanted = np.repeat(mean[begin : begin + rank + 1, None], 2, axis=1)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-12)
        gradient = front.gradient(
            lambda tensor: sum(
                front.sum(gathered * front.tensor(scale, "float64"))
                for gathered in hvd.grouped_allgather([tensor, tensor * 2])
            ),
            np.ones((rank + 1, 2)),
        )
        np.testing.assert_allclose(gradient, 3 * wanted, rtol=1e-12)

    world.run(body)


def test_objects(world):
    """Objects of different size and type, from every rank."""

    def body(front):
        hvd = front.hvd
        kinds = [None, "one" * 1000, {"two": [2, 2.0]}, (3, b"3")]
        assert hvd.allgather_object(kinds[hvd.rank()]) == kinds[: hvd.size()]
        assert hvd.allgather_object(hvd.rank(), name="named") == list(range(hvd.size()))

    world.run(body)


def test_object_that_cannot_be_pickled_is_an_error_on_all_ranks(world):
    """No rank waits for it, and the next call works."""

    def body(front):
        hvd = front.hvd
        last = hvd.size() - 1
        try:
            hvd.allgather_object((each for each in ()) if hvd.rank() == last else 1)
        except TypeError as error:
            assert hvd.rank() == last and "pickle" in str(error), error
        except ValueError as error:
            assert f"the object of rank {last} cannot be pickled: TypeError" in str(error), error
        else:
            raise AssertionError("a generator was sent")
        assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))

    world.run(body)


@pytest.mark.needs("torch")
def test_another_default_device(world):
    """What a call makes for itself lies on the CPU, whatever the user has made the default."""

    def body(front):
        import torch

        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        mine = front.tensor([float(rank)] * size)
        with torch.device("meta"):
            assert hvd.allgather(mine).device == mine.device
            assert hvd.allreduce(mine).device == mine.device
            assert hvd.allgather_object({"rank": rank}) == [{"rank": each} for each in range(size)]
            assert hvd.broadcast_object(rank, root_rank=size - 1) == size - 1
            assert hvd.reducescatter(mine).device == mine.device
            output, received = hvd.alltoall(mine, [1] * size)
            assert (output.device, received.device) == (mine.device, mine.device)

    world.run(body)
