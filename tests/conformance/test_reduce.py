"""reduce: what it refuses, large tensors, gradients. Values in every form are in test_forms.py."""

from __future__ import annotations

import numpy as np
import pytest


def test_large(world):
    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        for root in range(size):
            output = front.array(hvd.reduce(front.tensor(np.full(2_000_003, rank)), root, op=hvd.Sum))
            assert (output == (sum(range(size)) if rank == root else rank)).all()

    world.run(body)


@pytest.mark.needs("grouped")
def test_refused(world):
    def body(front):
        hvd = front.hvd
        tensor = front.tensor(np.ones(3))
        for call, words in (
            (lambda: hvd.reduce(tensor, 0, op=hvd.Adasum), "does not support Adasum"),
            (lambda: hvd.grouped_reduce([tensor], 0, op=hvd.Adasum), "does not support Adasum"),
            (lambda: hvd.reduce(front.tensor([True] * 4, "bool"), 0), "not supported"),
            (lambda: hvd.reduce(tensor, hvd.size()), "invalid root rank"),
            (lambda: hvd.reduce(tensor, -1), "invalid root rank"),
        ):
            try:
                call()
            except ValueError as error:
                assert words in str(error), error
            else:
                raise AssertionError(f"{words}: it was taken")
        np.testing.assert_array_equal(front.array(hvd.reduce(tensor, 0)), np.ones(3))

    world.run(body)


@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.needs("gradients")
def test_gradient(world, op):
    """All ranks get the gradient of the root's result, times the factors; other ranks' results do not count."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        root = size - 1
        how = {"op": getattr(hvd, op), "prescale_factor": 0.5, "postscale_factor": 3.0}
        wanted = np.full((2, 3), (root + 1) * 1.5 / (size if op == "Average" else 1))
        gradient = front.gradient(
            lambda tensor: front.sum(hvd.reduce(tensor, root, **how) * (rank + 1)), np.ones((2, 3))
        )
        np.testing.assert_allclose(gradient, wanted)
        gradient = front.gradient(
            lambda tensor: sum(
                front.sum(each * (rank + 1)) for each in hvd.grouped_reduce([tensor, tensor * 2], root, **how)
            ),
            np.ones((2, 3)),
        )
        np.testing.assert_allclose(gradient, wanted * 3)

    world.run(body)
