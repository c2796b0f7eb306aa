from __future__ import annotations

import pytest
import torch

from farandole.errors import InvalidRequestError
from farandole.torch.collectives.tensors import FRONT
from farandole.worker.collectives.rows import rows_to_send


def test_splits_may_be_a_tensor_of_int32():
    assert rows_to_send(torch.tensor([2, 1], dtype=torch.int32), 3, 2, FRONT.splits) == [2, 1]


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        (torch.ones(1, 2, dtype=torch.int32), "alltoall expects a 1D splits tensor"),
        (
            torch.ones(2, dtype=torch.int64),
            "32-bit integer elements, but these are torch.int64. Pass splits.to(torch.int32)",
        ),
    ],
)
def test_wrong_splits_are_refused(splits, words):
    with pytest.raises(InvalidRequestError) as caught:
        rows_to_send(splits, 3, 2, FRONT.splits)
    assert words in str(caught.value)
