"""reducescatter: uneven rows, what it refuses, gradients. Values in every form are in test_forms.py."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import scattered_rows


@pytest.mark.needs("ragged")
def test_uneven_rows(world):
    """The first ranks get one row more; with fewer rows than ranks, the last ones get none."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        for rows in range(2 * size + 2):
            mine = np.arange(rows * 3).reshape(rows, 3) + rank
            wanted = (np.arange(rows * 3).reshape(rows, 3) * size + sum(range(size)))[scattered_rows(rows, size)[rank]]
            output = hvd.reducescatter(front.tensor(mine), op=hvd.Sum)
            np.testing.assert_array_equal(front.array(output), wanted)

    world.run(body)


@pytest.mark.needs("ragged")
def test_large(world):
    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        count = 2_000_003
        mine = front.tensor(np.full(count, rank))
        output = front.array(hvd.reducescatter(mine, op=hvd.Sum))
        part = scattered_rows(count, size)[rank]
        assert output.shape == (part.stop - part.start,) and (output == sum(range(size))).all()

    world.run(body)


@pytest.mark.needs("grouped")
def test_compression(world):
    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        mine = np.arange(size * 2) + rank
        for compression in (getattr(hvd.Compression, name) for name in front.compressions):
            for output in (
                hvd.reducescatter(front.tensor(mine), compression=compression),
                hvd.grouped_reducescatter([front.tensor(mine)], compression=compression)[0],
            ):
                assert front.dtype(output) == "float32"
                wanted = np.arange(size * 2)[rank * 2 : rank * 2 + 2] + (size - 1) / 2
                np.testing.assert_allclose(front.array(output), wanted, rtol=1e-2)

    world.run(body)


@pytest.mark.needs("grouped")
def test_refused(world):
    def body(front):
        hvd = front.hvd
        rows = front.tensor(np.ones((hvd.size(), 2)))
        for call, words in (
            (lambda: hvd.reducescatter(front.tensor(1.0)), "Reducescatter does not support scalar inputs"),
            (
                lambda: front.at_once([("reducescatter", front.tensor(1.0), {})]),
                "Reducescatter does not support scalar inputs",
            ),
            (lambda: hvd.grouped_reducescatter([rows, front.tensor(1.0)]), "does not support scalar inputs"),
            (lambda: hvd.reducescatter(rows, op=hvd.Adasum), "Reducescatter currently only supports AVERAGE and SUM"),
            (lambda: hvd.reducescatter(front.tensor([True] * 4, "bool")), "not supported"),
            (lambda: hvd.reducescatter(rows, compression=hvd.Compression.int8), "for allreduce only"),
            (lambda: hvd.grouped_reducescatter([rows], compression=hvd.Compression.int8), "for allreduce only"),
        ):
            if words == "for allreduce only" and "recipes" not in front.has:
                continue
            try:
                call()
            except ValueError as error:
                assert words in str(error), error
            else:
                raise AssertionError(f"{words}: it was taken")
        np.testing.assert_array_equal(front.array(hvd.reducescatter(rows)), [[1.0, 1.0]])

    world.run(body)


@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.needs("gradients", "ragged gradients")
def test_gradient(world, op):
    """All ranks' gradients, gathered; for Sum times the number of ranks, and times the factors."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        how = {"op": getattr(hvd, op), "prescale_factor": 0.5, "postscale_factor": 3.0}
        rows = 2 * size + 1
        parts = scattered_rows(rows, size)
        owners = np.concatenate([np.full(part.stop - part.start, owner + 1.0) for owner, part in enumerate(parts)])
        wanted = np.repeat(owners[:, None], 2, axis=1) * 1.5 * (size if op == "Sum" else 1)
        gradient = front.gradient(
            lambda tensor: front.sum(hvd.reducescatter(tensor, **how) * (rank + 1)), np.ones((rows, 2))
        )
        np.testing.assert_allclose(gradient, wanted)
        gradient = front.gradient(
            lambda tensor: sum(
                front.sum(each * (rank + 1)) for each in hvd.grouped_reducescatter([tensor, tensor * 2], **how)
            ),
            np.ones((rows, 2)),
        )
        np.testing.assert_allclose(gradient, wanted * 3)

    world.run(body)
