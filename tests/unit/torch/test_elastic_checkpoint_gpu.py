"""Whether a checkpoint makes a copy within the GPU, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from farandole.torch.elastic import checkpoint


class TensorOnGpu:
    """A tensor of 100 bytes, for which the GPU has no memory left when `is_full`."""

    nbytes = 100

    def __init__(self, is_full: bool = False) -> None:
        self._is_full = is_full

    def clone(self, **options: Any) -> str:
        if self._is_full:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return "copy"


@pytest.mark.parametrize(
    ("free", "second_is_full", "copies"),
    [
        pytest.param(400, False, ["copy", "copy"], id="enough memory is free"),
        pytest.param(399, False, [], id="less than twice as much is free"),
        pytest.param(400, True, [], id="another process was quicker"),
    ],
)
def test_tensors_are_copied_within_the_gpu_if_there_is_memory(
    free: int, second_is_full: bool, copies: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 1000))
    sources: Any = [TensorOnGpu(), TensorOnGpu(second_is_full)]
    assert list(checkpoint._copy_on_gpu(torch.device("cuda", 0), sources)) == copies
