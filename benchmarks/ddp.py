"""Time a training step of a transformer with 25 million parameters, with different ways to sum its gradients.

    python benchmarks/ddp.py                    two workers
    python benchmarks/ddp.py --workers 4 --tokens 256

The ways take turns in the same processes: torch's DistributedDataParallel on gloo, the same on our backend, our
DistributedOptimizer, and no communication at all, which shows what the computation alone costs. As with
allreduce.py, what counts is the ratio of medians; the slowest worker's time counts. Results go to standard output and,
as JSON, to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allreduce import RESULTS, time_calls

VOCABULARY, WIDTH, LAYERS, HEADS = 12000, 512, 6, 8


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Time a training step with different ways to sum gradients.")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--tokens", type=int, default=128, help="in one worker's batch")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--steps", type=int, default=2, help="in one turn")
    parser.add_argument("--output", type=Path, default=RESULTS / "ddp.json")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)  # a worker: meets the others at this file
    return parser.parse_args()


def make_model() -> Any:
    """Return the transformer: 18.9 million parameters in its layers, 6.1 million in its embedding."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
            self.body = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            hidden = self.body(self.embedding(words))
            return torch.nn.functional.linear(hidden, self.embedding.weight)

    torch.manual_seed(0)
    return Model()


def make_step(model: Any, optimizer: Any, tokens: int) -> Callable[[], None]:
    """Return a training step: forward, backward, step."""
    import torch

    words = torch.randint(VOCABULARY, (1, tokens + 1))

    def step() -> None:
        optimizer.zero_grad()
        scores = model(words[:, :-1])
        torch.nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def make_ways(tokens: int) -> dict[str, Callable[[], None]]:
    """Return a step for every way, each with a model of its own."""
    import torch
    import torch.distributed as dist

    import farandole.torch as hvd

    ways = {}
    groups = {"DDP on farandole": dist.group.WORLD, "DDP on gloo": dist.new_group(backend="gloo")}
    for name, group in groups.items():
        model = torch.nn.parallel.DistributedDataParallel(
            make_model(), process_group=group, gradient_as_bucket_view=True
        )
        ways[name] = make_step(model, torch.optim.SGD(model.parameters(), lr=0.01), tokens)
    for name in ("DistributedOptimizer", "no communication"):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if name == "DistributedOptimizer":
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        ways[name] = make_step(model, optimizer, tokens)
    return ways


def work(arguments: argparse.Namespace) -> None:
    """Be one worker: let the ways take turns; rank 0 writes what all found."""
    import torch
    import torch.distributed as dist

    import farandole.torch as hvd
    import farandole.torch.distributed

    hvd.init()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    meeting = f"file://{arguments.worker}.store"
    dist.init_process_group(
        farandole.torch.distributed.NAME, init_method=meeting, rank=hvd.rank(), world_size=hvd.size()
    )
    ways = make_ways(arguments.tokens)
    for step in ways.values():
        time_calls(step, 2, hvd.barrier)  # The first steps allocate, and arrange the buckets.
    turns: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.turns):
        for name, step in ways.items():
            mine = torch.tensor([time_calls(step, arguments.steps, hvd.barrier)], dtype=torch.float64)
            turns[name].append(hvd.allreduce(mine, op=hvd.Max, name="slowest").item())
    if hvd.rank() == 0:
        arguments.worker.write_text(json.dumps(turns))
    dist.destroy_process_group()
    hvd.shutdown()


def measure(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Run the workers and return the seconds of a step, for every way and turn."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "turns.json"
        command = [sys.executable, "-m", "farandole", "run", "-np", str(arguments.workers), sys.executable, __file__]
        command += ["--worker", str(found), "--tokens", str(arguments.tokens)]
        command += ["--turns", str(arguments.turns), "--steps", str(arguments.steps)]
        subprocess.run(command, check=True)
        turns: dict[str, list[float]] = json.loads(found.read_text())
    return turns


def table(medians: dict[str, float], ratios: dict[str, float]) -> str:
    """Write the medians for people."""
    lines = [f"{'way':22}{'step':>12}{'gloo / it':>12}"]
    lines += [f"{name:22}{medians[name] * 1e3:9.1f} ms{ratios[name]:12.2f}" for name in medians]
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, write the JSON."""
    arguments = parse_arguments()
    if arguments.worker:
        work(arguments)
        return
    turns = measure(arguments)
    medians = {name: statistics.median(seconds) for name, seconds in turns.items()}
    # Turn by turn: what disturbs the machine for a while disturbs both.
    ratios = {
        name: statistics.median(theirs / ours for theirs, ours in zip(turns["DDP on gloo"], seconds, strict=True))
        for name, seconds in turns.items()
    }
    print(table(medians, ratios))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    machine = {"cores": len(os.sched_getaffinity(0)), "platform": platform.platform()}
    found = {"machine": machine, "workers": arguments.workers, "tokens": arguments.tokens, "seconds": turns}
    arguments.output.write_text(json.dumps({**found, "median": medians, "ratio": ratios}, indent=1) + "\n")
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
