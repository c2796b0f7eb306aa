"""The worker's side of the measurement: the only lines of a worker's script that a user would not write.

Variables: `BENCHMARK_FOLDER`, `BENCHMARK_STATE_BYTES` (frozen weights beside the tiny model), `BENCHMARK_BALLAST_BYTES`
(touched memory that one of the workers holds), `BENCHMARK_COMPUTATION` (matrices to multiply in each step).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from pathlib import Path

import torch
from torch import nn

from benchmarks.computation import compute
from benchmarks.elastic.records import GIVEN_UP, RECORD, SUFFIX
from benchmarks.elastic.workers.layout import BALLAST, GATE, GATE_RECORD

FEATURES, CLASSES, SAMPLES = 64, 10, 1 << 16
_LOOK_AGAIN = 0.005


class Notebook:
    """Records the steps of this process, and waits where the measurement wants it to wait."""

    def __init__(self) -> None:
        folder = Path(os.environ["BENCHMARK_FOLDER"])
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / f"{os.getpid()}{SUFFIX}", flags, 0o600)
        with open(folder / GATE, "rb") as file:
            self._gate = mmap.mmap(file.fileno(), GATE_RECORD.size, prot=mmap.PROT_READ)
        self._units = int(os.environ["BENCHMARK_COMPUTATION"])
        self._ballast = _take_ballast(folder, int(os.environ["BENCHMARK_BALLAST_BYTES"]))

    def begin(self, number: int) -> None:
        """Wait until the measurement allows this step, then compute the units of a step."""
        while number >= GATE_RECORD.unpack(self._gate[:])[0]:
            time.sleep(_LOOK_AGAIN)
        compute(self._units)

    def finish(self, number: int, size: int, rank: int) -> None:
        """Note that a step is finished."""
        os.write(self._file, RECORD.pack(time.monotonic_ns(), number, size, rank))

    def give_up(self, number: int, rank: int) -> None:
        """Note that a step was computed and dropped."""
        self.finish(number, GIVEN_UP, rank)


def _take_ballast(folder: Path, size: int) -> object:
    """Hold touched memory, unless another worker does. The kernel releases the lock when this process ends."""
    if not size:
        return None
    file = open(folder / BALLAST, "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    touched = torch.ones(size, dtype=torch.uint8)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file, touched


class TinyModel(nn.Module):
    """A perceptron of 10,000 weights, beside frozen ones that are only state."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, CLASSES))
        frozen = int(os.environ["BENCHMARK_STATE_BYTES"]) // 4
        if frozen:
            self.frozen = nn.Parameter(torch.ones(frozen), requires_grad=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def make_dataset() -> torch.utils.data.TensorDataset:
    """Return the samples to learn from: noise, the same in all workers."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(SAMPLES, FEATURES, generator=generator)
    return torch.utils.data.TensorDataset(images, torch.randint(CLASSES, (SAMPLES,), generator=generator))
