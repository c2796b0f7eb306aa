"""Reductions of sparse tensors: indices and values of all ranks."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.needs("torch")
def test_values(world):
    """Ranks hold different numbers of values, one of them none; `coalesce` adds up what has the same index."""

    def body(front):
        import torch

        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()

        def held(owner):
            indices = torch.tensor([[0, owner, owner + 1][:owner], [1, 0, 2][:owner]], dtype=torch.int64)
            rows = torch.arange(owner * 4.0).reshape(owner, 4) + owner
            return torch.sparse_coo_tensor(indices, rows, (6, 3, 4), check_invariants=True)

        dense = sum(held(owner).to_dense() for owner in range(min(size, 4)))
        for op, wanted in ((hvd.Sum, dense), (hvd.Average, dense / size)):
            waiting = hvd.sparse_allreduce_async(held(rank), name="sparse", op=op)
            assert callable(waiting)
            output = waiting()
            assert output.is_sparse and output.shape == (6, 3, 4)
            assert output._nnz() == sum(range(size))
            np.testing.assert_allclose(output.to_dense().numpy(), wanted.numpy(), rtol=1e-6)
        both = [hvd.sparse_allreduce_async(held(rank), name=name, op=hvd.Sum) for name in ("one", "two")]
        for waiting in reversed(both):
            np.testing.assert_allclose(waiting().coalesce().to_dense().numpy(), dense.numpy())

    world.run(body)


@pytest.mark.needs("torch")
def test_refused(world):
    def body(front):
        import torch

        hvd = front.hvd
        sparse = torch.eye(3).to_sparse()
        for tensor, op, words in ((torch.eye(3), hvd.Sum, "sparse"), (sparse, hvd.Max, "op=hvd.Sum")):
            try:
                hvd.sparse_allreduce_async(tensor, "refused", op)
            except ValueError as error:
                assert words in str(error)
            else:
                raise AssertionError("it was taken")
        assert float(hvd.sparse_allreduce_async(sparse, "refused", hvd.Average)().to_dense().sum()) == 3.0

    world.run(body)


@pytest.mark.needs("sparse rows")
def test_rows(world):
    """Ranks hold different numbers of rows, one of them none, and some of them the same ones."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()

        def held(owner):
            indices = [0, owner, owner + 1][:owner]
            return indices, np.arange(owner * 4.0).reshape(owner, 4) + owner

        dense = np.zeros((6, 4))
        for owner in range(size):
            for index, row in zip(*held(owner), strict=True):
                dense[index] += row
        for op, wanted in ((hvd.Sum, dense), (hvd.Average, dense / size)):
            reduced, stored = front.reduced_rows(*held(rank), 6, name="rows", op=op)
            np.testing.assert_allclose(reduced, wanted, rtol=1e-6)
            assert stored == sum(range(size))
        for op in (hvd.Max, hvd.Adasum):
            try:
                front.reduced_rows(*held(rank), 6, name="refused", op=op)
            except (ValueError, NotImplementedError) as error:
                assert "Sum" in str(error), error
            else:
                raise AssertionError("it was taken")

    world.run(body)
