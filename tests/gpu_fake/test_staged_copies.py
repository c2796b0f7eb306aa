"""Collectives of GPU tensors that go through host memory: the number of copies of each tensor."""

from __future__ import annotations

import pytest
import torch
from fake_gpu_device import DEVICE, FakeGpu

import farandole.torch as hvd

HOW = {
    "int8": {"compression": hvd.Compression.int8},
    "topk": {"compression": hvd.Compression.topk(0.1)},
    "adasum": {"op": hvd.Adasum},
}


@pytest.mark.parametrize("name", HOW)
def test_a_tensor_is_copied_once_to_the_host_and_once_back(worlds, name):
    def body(how):
        driver = FakeGpu.of_environment().load()
        driver.set_time("eager")
        tensor = torch.arange(1.0, 1001.0, device=DEVICE) * (1 + hvd.rank())
        counts = []
        for _ in range(3):
            torch.accelerator.synchronize()
            driver.reset_counts()
            result = hvd.allreduce(tensor, name="tensor", **how)
            torch.accelerator.synchronize()
            counts.append(driver.count("copies"))
        assert result.device.type == DEVICE
        return counts[1:]

    for counts in worlds.run(2, body, HOW[name]):
        assert counts == [2, 2]
