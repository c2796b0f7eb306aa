from __future__ import annotations

import pytest
import torch

from farandole.errors import InvalidRequestError
from farandole.torch.collectives.alltoall import rows_to_send
from farandole.torch.collectives.reducescatter import own_rows


def test_rows_to_send():
    assert rows_to_send(None, 6, 3) == [2, 2, 2]
    assert rows_to_send(None, 0, 3) == [0, 0, 0]
    assert rows_to_send([1, 0, 2], 3, 3) == [1, 0, 2]
    assert rows_to_send([1, 0], 3, 2) == [1, 0]
    assert rows_to_send(iter((1, 2)), 3, 2) == [1, 2]
    assert rows_to_send(torch.tensor([2, 1], dtype=torch.int32), 3, 2) == [2, 1]


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        (None, "splits not provided, but first dimension of tensor (3)"),
        ([1, 3], "Sum of splits entries is greater than the first dimension of tensor"),
        ([1], "Number of entries in splits does not equal number of workers"),
        ([-1, 2], "negative"),
        (3, "alltoall expects a 1D splits tensor"),
        (torch.ones(1, 2, dtype=torch.int32), "alltoall expects a 1D splits tensor"),
        (torch.ones(2, dtype=torch.int64), "32-bit integer elements"),
    ],
)
def test_wrong_splits(splits, words):
    with pytest.raises(InvalidRequestError) as caught:
        rows_to_send(splits, 3, 2)
    assert words in str(caught.value)


def test_own_rows():
    assert [own_rows(7, 3, rank) for rank in range(3)] == [3, 2, 2]
    assert [own_rows(2, 3, rank) for rank in range(3)] == [1, 1, 0]
