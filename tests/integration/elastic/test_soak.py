"""Random events, some dozens of them: see `soak`. `make soak` lets many more happen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_gpu_device import FakeGpu
from worlds import Nursery

sys.path.insert(0, str(Path(__file__).parent))

from soak import Soak

EVENTS = 34
# Each takes longer: of a worker whose NCCL hangs in an abort, 10 s.
GPU_EVENTS = 10


@pytest.mark.parametrize("seed", [1, 2])
def test_training_survives_random_events(seed: int, nursery: Nursery) -> None:
    soak = Soak(nursery, seed)
    try:
        assert soak.wrongs(soak.run(EVENTS)) == []
    finally:
        soak.close()


def test_training_on_gpus_survives_random_events_and_faults(fake_gpu: FakeGpu, nursery: Nursery) -> None:
    soak = Soak(nursery, 3, gpu=fake_gpu)
    try:
        assert soak.wrongs(soak.run(GPU_EVENTS)) == []
    finally:
        soak.close()


def test_memory_of_worker_does_not_grow_with_worlds(nursery: Nursery) -> None:
    soak = Soak(nursery, 0)
    try:
        ended = soak.grow_and_shrink(10)
        assert soak.wrongs(ended) == []
        assert len(ended[0].holdings) > 10
    finally:
        soak.close()
