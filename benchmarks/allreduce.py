"""Time allreduce against torch's gloo: the same tensors, the same processes, taking turns.

    python benchmarks/allreduce.py                    worlds of 2 and 8, five sizes
    python benchmarks/allreduce.py --worlds 4 --sizes 64K 16M

Machines differ and are busy with other things, so a time alone says little: what counts is the ratio of two medians
from the same minute. Each turn is `--calls` calls of one, then of the other; the slowest rank's time counts.
Results go to standard output and, as JSON, to benchmarks/results/.
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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
RESULTS = Path(__file__).parent / "results"
# About how long the turns of one size may take. A first measurement decides how many calls that makes.
SECONDS_PER_SIZE = 4.0
TURNS = 15


def parse_size(text: str) -> int:
    """Read a number of bytes such as 4, 64K or 16M."""
    unit = text[-1] if text[-1] in UNITS else ""
    size = int(text.removesuffix(unit)) * UNITS[unit]
    if size < 4 or size % 4:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of float32")
    return size


def format_size(size: int) -> str:
    """Write a number of bytes as `parse_size` reads it."""
    for unit in ("G", "M", "K"):
        if size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]}{unit}"
    return str(size)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Time allreduce against torch's gloo.")
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 8], metavar="N")
    parser.add_argument("--sizes", type=parse_size, nargs="+", metavar="BYTES")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--seconds", type=float, default=SECONDS_PER_SIZE, help="for each size")
    parser.add_argument("--output", type=Path, default=RESULTS / "allreduce.json")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)  # a worker: meets the others at this file
    arguments = parser.parse_args()
    arguments.sizes = arguments.sizes or [4, 1 << 10, 64 << 10, 1 << 20, 16 << 20]
    return arguments


def time_calls(call: Callable[[], object], calls: int, meet: Callable[[], object]) -> float:
    """Return the seconds one call takes, when all ranks begin together."""
    meet()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls


def work(arguments: argparse.Namespace) -> None:
    """Be one worker: measure every size; rank 0 writes what all found."""
    import torch
    import torch.distributed as dist

    import farandole.torch as hvd

    hvd.init()
    meeting = f"file://{arguments.worker}.gloo"
    dist.init_process_group("gloo", init_method=meeting, rank=hvd.rank(), world_size=hvd.size())
    rows = []
    for size in arguments.sizes:
        tensor = torch.zeros(size // 4)
        # Zeros: the sum of sums of sums stays what it is.
        calls: dict[str, Callable[[], object]] = {
            "farandole": lambda tensor=tensor: hvd.allreduce_(tensor, op=hvd.Sum, name="benchmark"),
            "gloo": lambda tensor=tensor: dist.all_reduce(tensor, op=dist.ReduceOp.SUM),
        }
        first = max(time_calls(call, 3, hvd.barrier) for call in calls.values())
        count = int(arguments.seconds / (2 * arguments.turns) / first)
        count = hvd.broadcast_object(max(1, min(count, 1000)), root_rank=0, name="count")
        turns: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(arguments.turns):
            for name, call in calls.items():
                mine = torch.tensor([time_calls(call, count, hvd.barrier)], dtype=torch.float64)
                turns[name].append(hvd.allreduce(mine, op=hvd.Max, name="slowest").item())
        rows.append({"workers": hvd.size(), "bytes": size, "calls": count, "seconds": turns})
    if hvd.rank() == 0:
        arguments.worker.write_text(json.dumps(rows))
    dist.destroy_process_group()
    hvd.shutdown()


def measure(world: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run one world and return its rows."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "farandole", "run", "-np", str(world), sys.executable, __file__]
        command += ["--worker", str(found), "--turns", str(arguments.turns), "--seconds", str(arguments.seconds)]
        command += ["--sizes", *map(format_size, arguments.sizes)]
        subprocess.run(command, check=True)
        rows: list[dict[str, Any]] = json.loads(found.read_text())
    for row in rows:
        row["median"] = {name: statistics.median(seconds) for name, seconds in row["seconds"].items()}
        row["ratio"] = row["median"]["gloo"] / row["median"]["farandole"]
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Write the medians for people."""
    lines = ["workers    bytes   farandole        gloo   gloo / farandole"]
    for row in rows:
        ours, theirs = (f"{row['median'][name] * 1e6:9.1f} us" for name in ("farandole", "gloo"))
        lines.append(f"{row['workers']:7} {format_size(row['bytes']):>8}{ours}{theirs} {row['ratio']:18.2f}")
    return "\n".join(lines)


def main() -> None:
    """Measure all worlds, print the table, write the JSON."""
    arguments = parse_arguments()
    if arguments.worker:
        work(arguments)
        return
    rows = [row for world in arguments.worlds for row in measure(world, arguments)]
    print(table(rows))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    machine = {"cores": len(os.sched_getaffinity(0)), "platform": platform.platform()}
    arguments.output.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
