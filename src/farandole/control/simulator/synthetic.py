"""Synthetic profiles and workloads, for demonstrations and tests where no published traces are at hand.

Their statistics are those of the published ones: five in six jobs are small, a few take a day on one accelerator; users
request 1 to 16 slots; jobs arrive over eight hours, in waves. Step times and noise follow simple formulas, with a few
percent of measurement error, so that models fitted to them are never exact. The same seed gives the same files.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

CLUSTER = "plain:6x4,fast:2x8,middle:3x8"
"""Node types of the generated profiles, 64 slots in all."""

HOURS = 8


@dataclass(frozen=True)
class _Type:
    """A type of node: how fast it computes and reduces, and how much fits into its memory, relative to the first."""

    name: str
    slots: int
    nodes: int
    compute: float
    network: float
    between: float
    memory: int


_TYPES = (
    _Type("plain", 4, 6, 1.0, 1.0, 8.0, 1),
    _Type("fast", 8, 2, 0.3, 0.1, 0.15, 4),
    _Type("middle", 8, 3, 0.55, 1.5, 2.5, 1),
)


@dataclass(frozen=True)
class _Kind:
    """An application: how often it is submitted, batch sizes, seconds on the first type, noise and length."""

    name: str
    weight: float
    initial: int
    doublings: int
    local: int
    fixed: float
    per_sample: float
    network: float
    noise: float
    """Final ratio of the gradient's variance to its squared norm, in multiples of the initial batch size."""
    epochs: int
    progress: float
    restart: float


_KINDS = (
    _Kind("digits", 134, 128, 5, 1024, 0.02, 0.0007, 0.05, 40.0, 60, 60_000, 40),
    _Kind("speech", 12, 16, 5, 64, 0.2, 0.025, 0.15, 25.0, 40, 30_000, 25),
    _Kind("answers", 8, 16, 5, 16, 0.15, 0.06, 0.6, 30.0, 3, 14_000, 120),
    _Kind("boxes", 5, 8, 6, 16, 0.15, 0.03, 0.35, 50.0, 30, 90_000, 80),
    _Kind("pictures", 4, 200, 6, 200, 0.08, 0.0045, 0.15, 90.0, 60, 400_000, 250),
)


def profiles(seed: int = 0) -> dict[str, str]:
    """Return the files of the profiles by their paths."""
    random_ = random.Random(f"profiles {seed}")
    files = {}
    for kind in _KINDS:
        folder = f"apps/{kind.name}"
        for type_ in _TYPES:
            files[f"{folder}/placements-{type_.name}.csv"] = _placements(kind, type_, random_)
            files[f"{folder}/scalability-{type_.name}.csv"] = _scalability(kind, type_, random_)
        for batch in _batches(kind):
            files[f"{folder}/validation-{batch}.csv"] = _validation(kind, batch)
        files[f"{folder}/constants.csv"] = f"restart,slowdown\n{kind.restart:g},1.2\n"
    return files


def workload(seed: int = 0, jobs: int = 160, hours: float = HOURS) -> str:
    """Return a table of jobs, as `farandole.control.simulator.job_trace` reads it."""
    random_ = random.Random(f"workload {seed}")
    seconds = sorted(_arrival(random_, hours * 3600) for _ in range(jobs))
    rows = ["name,time,application,num_replicas,batch_size"]
    for index, time in enumerate(seconds):
        (kind,) = random_.choices(_KINDS, [kind.weight for kind in _KINDS])
        slots = random_.choice([1, 2, 3, 4, 4, 6, 8, 8, 8, 12, 16])
        batch = min(_batches(kind)[-1], kind.initial * 2 ** round(math.log2(slots) + random_.uniform(0, 1.5)))
        batch = max(batch, slots * _grid(kind, _TYPES[0])[0])
        rows.append(f"{kind.name}-{index},{int(time)},{kind.name},{slots},{min(batch, _batches(kind)[-1])}")
    return "\n".join(rows) + "\n"


def _arrival(random_: random.Random, seconds: float) -> float:
    """Return a random submission time; there are three waves, with few jobs between them."""
    while True:
        time = random_.uniform(0, seconds)
        if random_.random() < 0.25 + 0.75 * math.sin(3 * math.pi * time / seconds) ** 2:
            return time


def _batches(kind: _Kind) -> list[int]:
    return [kind.initial * 2**doubling for doubling in range(kind.doublings + 1)]


def _grid(kind: _Kind, type_: _Type) -> list[int]:
    """Return the local batches that are measured: in half-octave steps, up to the largest that fits into memory."""
    largest = kind.local * type_.memory
    smallest = max(1, kind.local // 32, kind.initial // 8)
    steps = round(2 * math.log2(largest / smallest))
    return sorted({round(smallest * (largest / smallest) ** (step / steps)) for step in range(steps + 1)})


def _placements(kind: _Kind, type_: _Type, random_: random.Random) -> str:
    rows = ["placement,local_bsz,step_time,sync_time"]
    for shape in _shapes(type_):
        for local in _fitting(kind, type_, sum(shape)):
            step, sync = _step(kind, type_, len(shape), sum(shape), local, random_)
            rows.append(f"{''.join(map(str, shape))},{local},{step:.6f},{sync:.6f}")
    return "\n".join(rows) + "\n"


def _scalability(kind: _Kind, type_: _Type, random_: random.Random) -> str:
    rows = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    for nodes in range(1, type_.nodes + 1):
        for workers in {nodes, nodes * type_.slots // 2, nodes * type_.slots}:
            for local in _fitting(kind, type_, workers):
                step, sync = _step(kind, type_, nodes, workers, local, random_)
                rows.append(f"{nodes},{workers},{local},{step:.6f},{sync:.6f}")
    return "\n".join(rows) + "\n"


def _fitting(kind: _Kind, type_: _Type, workers: int) -> list[int]:
    """Return the local batches with which the batch of all workers does not exceed the largest batch size."""
    grid = _grid(kind, type_)
    return [local for local in grid if local * workers <= _batches(kind)[-1]] or grid[:2]


def _shapes(type_: _Type) -> Iterator[Sequence[int]]:
    """Yield placements on up to two nodes, in their canonical forms."""
    counts = range(1, type_.slots + 1)
    yield from ((count,) for count in counts)
    yield from (pair for pair in product(counts, counts) if pair[0] <= pair[1])


def _step(
    kind: _Kind, type_: _Type, nodes: int, workers: int, local: int, random_: random.Random
) -> tuple[float, float]:
    """Return the seconds of a step, and of its all-reduce, which partly hides behind the backward pass."""
    crowded = 1 + 0.02 * (workers / nodes - 1)
    compute = (kind.fixed + kind.per_sample * local) * type_.compute * crowded * random_.uniform(0.97, 1.03)
    if workers == 1:
        return compute * 1.002, compute * 0.002
    ring = 2 * (workers - 1) / workers
    network = kind.network * ring * (type_.network if nodes == 1 else type_.between) * random_.uniform(0.95, 1.05)
    step = (compute**1.8 + network**1.8) ** (1 / 1.8)
    return step, step - compute


def _validation(kind: _Kind, batch: int) -> str:
    """Return a training run, during which the gradient becomes smaller and its noise larger."""
    rows = ["progress,iteration,metric,grad_sqr,grad_var"]
    for epoch in range(kind.epochs):
        part = (epoch + 1) / kind.epochs
        progress = kind.progress * part
        ratio = kind.noise * (0.1 + part)
        loss = 2.0 * 0.2**part
        iteration = round(progress * kind.initial / batch * (batch / kind.initial + ratio) / (1 + ratio))
        rows.append(f"{progress:.3f},{iteration},{1 - loss / 4:.4f},{loss:.6f},{loss * ratio:.6f}")
    return "\n".join(rows) + "\n"
