"""Measure the time per step of a training on a GPU, with checkpoints of its state and without, in turns.

    python -m benchmarks.gpu_checkpoints --steps 100 --every 20

Without CUDA it runs on the fake GPU of `tests/gpu_fake`. Then the numbers show the work of the host only: copies to the
memory of a real GPU and from it take another time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time

import torch

from benchmarks.peers.base import ROOT

sys.path.insert(0, str(ROOT / "tests" / "support"))

from fake_gpu_device import DEVICE, FakeGpu, build

from farandole.torch.elastic.checkpoint import Checkpoint


class Training:
    """A model of linear layers with Adam, on one GPU."""

    def __init__(self, device: str, layers: int, width: int) -> None:
        self._backend = getattr(torch, device)
        self._samples = torch.randn(32, width, device=device)
        self._model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).to(device)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=1e-4)
        self._steps_taken = 0
        self.nbytes = 3 * sum(parameter.nbytes for parameter in self._model.parameters())

    def time_steps(self, steps: int, checkpoint: Checkpoint | None) -> tuple[float, int]:
        """Take steps; return the seconds that each has taken, and how many checkpoints were begun."""
        saved = 0
        self._backend.synchronize()
        begun = time.perf_counter()
        for _ in range(steps):
            self._optimizer.zero_grad()
            self._model(self._samples).square().mean().backward()
            self._optimizer.step()
            self._steps_taken += 1
            if checkpoint is not None and checkpoint.due(self._steps_taken):
                state = {"model": self._model, "optimizer": self._optimizer}
                saved += checkpoint.save(state, self._steps_taken, rank=0, size=1)
        self._backend.synchronize()
        return (time.perf_counter() - begun) / steps, saved


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="steps of each measurement (default: 100)")
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints (default: 20)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each kind (default: 5)")
    parser.add_argument("--layers", type=int, default=8, help="linear layers of the model (default: 8)")
    parser.add_argument("--width", type=int, default=512, help="rows and columns of each layer (default: 512)")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else DEVICE
    if device == DEVICE:
        _load_fake_gpu()
    training = Training(device, given.layers, given.width)
    training.time_steps(given.steps, None)
    without, with_checkpoints, saved = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint(folder, every_steps=given.every, say=lambda level, line: None)
        for _ in range(given.rounds):
            without.append(training.time_steps(given.steps, None)[0])
            seconds, count = training.time_steps(given.steps, checkpoint)
            with_checkpoints.append(seconds)
            saved += count
            checkpoint.wait()
    due = given.rounds * given.steps // given.every
    print(f"{device}, {os.cpu_count()} cores; a state of {training.nbytes / 1e6:.1f} MB; {saved} of {due} checkpoints")
    print("median   worst   milliseconds per step")
    for name, values in (("without checkpoints", without), (f"one each {given.every} steps", with_checkpoints)):
        print(f"{statistics.median(values) * 1e3:6.2f}  {max(values) * 1e3:6.2f}   {name}")


def _load_fake_gpu() -> None:
    """Load the fake GPU; begin anew as a process that finds its libraries, unless this one does."""
    variables = build().environment(time="eager")
    if not variables.keys() <= os.environ.keys():
        command = [sys.executable, "-m", "benchmarks.gpu_checkpoints", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **variables})
    FakeGpu.of_environment().load_for_farandole()


if __name__ == "__main__":
    main()
