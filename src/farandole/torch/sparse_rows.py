"""A sparse gradient as rows of bytes, which one allgather can carry.

A row is one stored element: its index, int64 for each sparse dimension, then its values. Index and values are sent
together, so that the ranks agree on a sparse gradient once, under one name; so a rank that has a dense one gets an
error, instead of being waited for by two separate gathers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

INDEX_BYTES = 8


def pack(gradient: torch.Tensor) -> torch.Tensor:
    """Return the rows [stored elements, bytes] of a sparse tensor; elements with the same index become one row."""
    gradient = gradient.detach().coalesce()
    indices, values = gradient.indices(), gradient.values()
    count = indices.shape[1]
    return torch.cat([_bytes(indices.t(), count), _bytes(values, count)], dim=1)


def unpack(rows: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, sparse_dim: int) -> torch.Tensor:
    """Return the sparse tensor whose elements are the rows of one or several tensors; not coalesced.

    Args:
        rows: the results of `pack`, joined along the first dimension.
        shape: the shape of the dense tensor.
        dtype: the type of its values.
        sparse_dim: the number of its sparse dimensions, which are the first ones.
    """
    border = sparse_dim * INDEX_BYTES
    # Copies of their own, because a view as another type wants to be aligned to it.
    indices = rows[:, :border].flatten().clone().view(torch.int64).view(len(rows), sparse_dim)
    values = rows[:, border:].flatten().clone().view(dtype).view(len(rows), *shape[sparse_dim:])
    return torch.sparse_coo_tensor(indices.t(), values, tuple(shape), check_invariants=False)


def _bytes(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    row = math.prod(tensor.shape[1:]) * tensor.element_size()
    flat = tensor.flatten()
    if flat.stride(0) != 1:
        # A single element, whose stride PyTorch ignores everywhere but here.
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).view(rows, row)
