from __future__ import annotations

import pytest
import torch

from farandole.torch.compression import Compression


@pytest.mark.parametrize(
    ("compression", "dtype"), [(Compression.fp16, torch.float16), (Compression.bf16, torch.bfloat16)]
)
def test_floating_types_are_cast_and_others_are_not(compression, dtype):
    for original in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        compressed, context = compression.compress(torch.ones(3, dtype=original))
        assert compressed.dtype == dtype
        assert compression.decompress(compressed, context).dtype == original
    whole = torch.tensor([70000])
    compressed, context = compression.compress(whole)
    assert compressed is whole and torch.equal(compression.decompress(compressed, context), whole)


def test_none_changes_nothing():
    tensor = torch.ones(3)
    compressed, context = Compression.none.compress(tensor)
    assert compressed is tensor and Compression.none.decompress(compressed, context) is tensor
