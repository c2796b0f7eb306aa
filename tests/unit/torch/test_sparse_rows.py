from __future__ import annotations

import pytest
import torch

from farandole.torch.sparse_rows import pack, unpack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("shape", "sparse_dim"), [((5,), 1), ((5, 3), 1), ((5, 3), 2), ((4, 3, 2), 1), ((4, 3, 2), 2)], ids=str
)
def test_packed_rows_unpack_to_the_sum_of_the_tensors(dtype, shape, sparse_dim):
    """The rows of several tensors, joined, are their sum; an empty one adds none."""
    dense = [torch.randint(0, 3, shape).to(dtype) for _ in range(2)]
    sparse = [tensor.to_sparse(sparse_dim) for tensor in (*dense, torch.zeros(shape, dtype=dtype))]
    rows = [pack(tensor) for tensor in sparse]
    assert len(rows[2]) == 0 and rows[2].shape[1] == rows[0].shape[1]
    restored = unpack(torch.cat(rows), shape, dtype, sparse_dim)
    assert restored.is_sparse and restored.sparse_dim() == sparse_dim
    assert torch.equal(restored.to_dense(), dense[0] + dense[1])


def test_elements_of_one_index_become_one_row():
    twice = torch.sparse_coo_tensor([[1, 1, 3]], [[1.0, 2.0], [10.0, 20.0], [5.0, 6.0]], (4, 2), check_invariants=True)
    rows = pack(twice)
    assert rows.shape == (2, 8 + 2 * 4)
    assert unpack(rows, (4, 2), torch.float32, 1).to_dense().tolist() == [[0, 0], [11, 22], [0, 0], [5, 6]]


@pytest.mark.parametrize("sparse_dim", [1, 2])
def test_several_elements_of_one_index_become_one_row(sparse_dim):
    """Such as the gradient of an embedding for a batch of only padding: its one index has the stride of all three."""
    dense = torch.zeros(4, 2)
    dense[1, 0] = 6.0
    indices = [[1, 1, 1], [0, 0, 0]][:sparse_dim]
    values = [1.0, 2.0, 3.0] if sparse_dim == 2 else [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]
    rows = pack(torch.sparse_coo_tensor(indices, values, (4, 2), check_invariants=True))
    assert len(rows) == 1
    assert torch.equal(unpack(rows, (4, 2), torch.float32, sparse_dim).to_dense(), dense)
