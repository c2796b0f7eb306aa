"""Measure the time from `kill -9` of a worker to the next step of a training on fake GPUs, and its parts.

    python -m benchmarks.gpu_recovery --workers 4 --trials 20

All workers share one GPU of `tests/gpu_fake`, which needs no hardware. So the numbers are those of farandole's own
work, with an NCCL that aborts at once. How long a real one takes is not in them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.base import ROOT

sys.path.insert(0, str(ROOT / "tests" / "support"))

from elastic_worlds import ElasticJob
from fake_gpu_device import DEVICE, FakeGpu, build, nccl_count
from worlds import Nursery, wait_until

from farandole.control.roster.elastic import Limits

PARTS = {
    "failed": "the loss is noticed, communicators are aborted, the broken collectives fail",
    "joined": "all survivors have joined the roster, which announces the next world",
    "formed": "its connections are made",
    "compared": "the survivors know how far each of them is",
    "reduced": "the kept gradients are reduced, through host memory",
    "counted": "the optimizer has taken the step",
}
"""The recorded points in their order, each with what has happened since the previous one."""


def train(folder: str, width: int) -> None:
    """Train until the process is killed, and record when it reaches each point. A worker runs this."""
    import torch

    import farandole.torch as hvd
    from farandole.base.wire.roster_client import RosterClient
    from farandole.worker.core.basics import current
    from farandole.worker.core.engine import Engine
    from farandole.worker.elastic.recovery import Recovery
    from farandole.worker.gradients.reducer import Reducer

    FakeGpu.of_environment().load_for_farandole()
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    book = open(Path(folder) / f"worker-{current().settings.rank}", "a", buffering=1)

    def note(point: str, **facts: Any) -> None:
        book.write(json.dumps({"at": time.monotonic_ns(), "point": point, **facts}) + "\n")

    def note_after(owner: Any, name: str, point: str) -> None:
        call = getattr(owner, name)

        def noted(*arguments: Any, **options: Any) -> Any:
            result = call(*arguments, **options)
            note("failed" if isinstance(result, Exception) else point)
            return result

        setattr(owner, name, noted)

    note_after(Reducer, "_run_out", "reduced")
    note_after(RosterClient, "join", "joined")
    note_after(Engine, "form", "formed")
    note_after(Recovery, "compare", "compared")
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers).to(DEVICE)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    loader = hvd.elastic.ElasticLoader(torch.utils.data.TensorDataset(torch.randn(512, width)), batch_size=4)
    launched = 0
    for (x,) in hvd.elastic.steps(loader, epochs=10**9, model=model, optimizer=optimizer):
        optimizer.zero_grad()
        model(x.to(DEVICE)).square().mean().backward()
        optimizer.step()
        groups, launched = launched, nccl_count("groups")
        note("counted", size=hvd.size(), by_nccl=launched > groups)


class GpuJob:
    """A job whose workers are killed one after another, and replaced."""

    def __init__(self, nursery: Nursery, gpu: FakeGpu, workers: int, width: int) -> None:
        """Start the job."""
        self._folder = tempfile.TemporaryDirectory()
        self._width = width
        variables = {
            **gpu.environment(time="eager"),
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
            "FAKE_GPU_MEMORY": str(1 << 28),
        }
        self._job = ElasticJob(nursery, Limits(1, workers, timeout=60.0), variables)
        self._living: list[int] = []
        self._add(workers)

    def trial(self) -> dict[str, float]:
        """Kill a worker, and return the milliseconds until the last of the survivors came to each point.

        A point is missing if no survivor had to come to it: between two steps, no collective is broken.
        """
        self._wait_for_nccl()
        victim = random.choice(self._living)
        self._living.remove(victim)
        time.sleep(random.uniform(0, 0.05))
        killed = time.monotonic_ns()
        self._job.kill(victim)
        wait_until(lambda: all(self._points(worker, killed) for worker in self._living))
        found = [self._points(worker, killed) for worker in self._living]
        self._add(1)
        return {
            point: (max(times) - killed) / 1e6
            for point in PARTS
            if (times := [each[point] for each in found if point in each])
        }

    def close(self) -> None:
        """End the job."""
        self._job.close()
        self._folder.cleanup()

    def _add(self, count: int) -> None:
        new = self._job.add(count)
        self._job.start(train, self._folder.name, self._width, workers=new)
        self._living += new

    def _book(self, worker: int) -> list[dict[str, Any]]:
        path = Path(self._folder.name) / f"worker-{worker}"
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def _wait_for_nccl(self) -> None:
        """Wait until all workers are in one world that reduces by NCCL."""

        def are_there() -> bool:
            names = [Path(self._folder.name) / f"worker-{worker}" for worker in self._living]
            if not all(name.exists() for name in names):
                return False
            last = [self._book(worker)[-1:] for worker in self._living]
            return all(each and each[0].get("by_nccl") and each[0]["size"] == len(self._living) for each in last)

        wait_until(are_there)

    def _points(self, worker: int, since: int) -> dict[str, int]:
        """Return when a survivor reached each point; empty if it has not taken a step without the victim yet."""
        lines = [line for line in self._book(worker) if line["at"] > since]
        after = [line for line in lines if line["point"] == "counted" and line["size"] == len(self._living)]
        if not after:
            return {}
        points: dict[str, int] = {}
        for line in lines:
            if line["at"] <= after[0]["at"]:
                points[line["point"]] = line["at"]
        return points


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4, help="workers of the job (default: 4)")
    parser.add_argument("--trials", type=int, default=20, help="workers that are killed (default: 20)")
    parser.add_argument("--width", type=int, default=128, help="rows of each of four layers (default: 128)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers, in milliseconds, to this file")
    given = parser.parse_args()
    nursery = Nursery()
    job = GpuJob(nursery, build(), given.workers, given.width)
    try:
        trials = [job.trial() for _ in range(given.trials)]
    finally:
        job.close()
        nursery.close()
    print(f"{given.workers} workers, {given.trials} trials, {os.cpu_count()} cores; milliseconds since kill -9")
    print("median   worst   point")
    for point, meaning in PARTS.items():
        values = [trial[point] for trial in trials if point in trial]
        if not values:
            continue
        print(f"{statistics.median(values):6.1f}  {max(values):6.1f}   {point}: {meaning}")
    if given.json is not None:
        given.json.write_text(json.dumps(trials, indent=1) + "\n")


if __name__ == "__main__":
    main()
