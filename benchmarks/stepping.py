"""Workers for benchmarks on Ray and on Spark, which sum or step, and when they did so."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

STEPS = 2000
NUMBERS = 100_000
# Anything that takes longer has failed.
SECONDS = 120.0


def nothing() -> None:
    """Do nothing."""


def steps() -> tuple[float, float]:
    """Return the seconds of many sums over all workers, and this process's processor time of them. Run by a worker."""
    import numpy as np

    import farandole.numpy as hvd

    hvd.init()
    numbers = np.ones(NUMBERS, np.float32)
    hvd.allreduce(numbers, name="first")
    began, computed = time.monotonic(), time.process_time()
    for _ in range(STEPS):
        hvd.allreduce(numbers, name="numbers")
    return time.monotonic() - began, time.process_time() - computed


def step_for_ever(folder: str) -> None:
    """Record when this is called, when `init()` is, and when each step ends; end at a file `finish` in the folder.

    Run by a worker.
    """
    called = time.monotonic()
    import torch

    import farandole.torch as hvd

    Path(folder, f"began.{os.getpid()}").write_text(f"{called} {time.monotonic()}")
    hvd.init()
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, steps=0)
    book = open(Path(folder, f"steps.{os.getpid()}"), "w", buffering=1)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while True:
            done = hvd.allreduce(torch.tensor([float(Path(folder, "finish").exists())]), op=hvd.Min, name="done")
            book.write(f"{time.monotonic()} {hvd.size()}\n")
            state.commit()
            if done[0]:
                return
            time.sleep(0.01)

    loop(state)


@contextlib.contextmanager
def two_step(run: Callable[[str], Any]) -> Iterator[tuple[Path, list[int]]]:
    """Let two workers step in a thread as long as the context lasts.

    Args:
        run: runs `step_for_ever` in a given folder.

    Yields:
        The folder, and the process ids of the workers, which step together.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = threading.Thread(target=run, args=[folder])
        job.start()
        try:
            yield Path(folder), wait(lambda: len(found := together(Path(folder))) == 2 and found)
        finally:
            Path(folder, "finish").touch()
            job.join(SECONDS)


def together(folder: Path) -> list[int]:
    """Return the process ids of workers that have made a step with another one."""
    return [int(each.suffix[1:]) for each in folder.glob("steps.*") if any(size == 2 for _, size in _read(each))]


def next_step(folder: Path, worker: int, size: int, after: float) -> float:
    """Return how long after a time a worker has made its next step in a world of that size."""
    steps = folder / f"steps.{worker}"
    return float(wait(lambda: [at for at, among in _read(steps) if at > after and among == size])[0]) - after


def began(folder: Path, worker: int) -> tuple[float, float]:
    """Return when a worker was called, and when it called `init()`."""
    called, init = (folder / f"began.{worker}").read_text().split()
    return float(called), float(init)


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def _read(file: Path) -> list[tuple[float, int]]:
    lines = [line.split() for line in file.read_text().split("\n")[:-1]]
    return [(float(at), int(size)) for at, size in lines]


def wait(fact: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := fact()):
        if time.monotonic() > deadline:
            raise TimeoutError("nothing happens")
        time.sleep(0.005)
    return found


Median = Callable[[Callable[[dict[str, Any]], float]], float]


def report(rounds: Sequence[dict[str, Any]], table: Callable[[Median], Mapping[str, float]], file: Path | None) -> None:
    """Print medians over rounds.

    Args:
        rounds: the times of each round, by name.
        table: returns the lines to print, by a function that returns the median of what it is asked for.
        file: is written with all of it, as JSON.
    """
    results = table(lambda value: statistics.median(value(each) for each in rounds))
    print(f"medians of {len(rounds)} rounds; load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, value in results.items():
        print(f"  {name:60} {value:7.3f}")
    if file:
        file.write_text(json.dumps({"medians": results, "rounds": rounds}, indent=1))
