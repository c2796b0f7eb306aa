"""The counters of a worker or a job at one moment, as data, and totals over worlds.

A reading is a sequence of `Sample`s; `exposition` writes it in Prometheus' formats. This module needs no other package.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of step times."""

_SUMMED = ("requests", "buckets", "bytes", "waiting_seconds", "negotiating_seconds", "moving_seconds")
_NAMES = {
    "requests": "farandole_collectives",
    "buckets": "farandole_buckets",
    "bytes": "farandole_collective_bytes",
    "waiting_seconds": "farandole_waiting_seconds",
    "negotiating_seconds": "farandole_negotiating_seconds",
    "moving_seconds": "farandole_moving_seconds",
}


class Sample(NamedTuple):
    """One value of a metric of `metric_table`."""

    name: str
    """Name of the metric in the table."""
    value: float
    labels: tuple[str, ...] = ()
    """Values of the labels, in the table's order."""


class Histogram(NamedTuple):
    """A histogram of step times with the buckets of `STEP_SECONDS`."""

    counts: tuple[int, ...]
    """Number of values in each bucket; the last bucket has no upper bound."""
    total: float
    """Sum of all values in seconds."""


class StepTimer:
    """Measures the time between the ends of steps. The training thread calls `step` after every step."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last: float | None = None
        self._counts = [0] * (len(STEP_SECONDS) + 1)
        self._total = 0.0

    def step(self) -> None:
        """Record that a step has ended."""
        now = self._clock()
        if self._last is not None:
            took = now - self._last
            self._counts[bisect.bisect_left(STEP_SECONDS, took)] += 1
            self._total += took
        self._last = now

    def world_ends(self) -> None:
        """Record the end of a world: the time until the next step ends is not counted."""
        self._last = None

    def histogram(self) -> Histogram:
        """Return the histogram of all steps so far."""
        return Histogram(tuple(self._counts), self._total)


class WorkerTotals:
    """Counts of a worker over all its worlds: the engine's counts restart with each world."""

    def __init__(self) -> None:
        self._before: dict[str, Any] = {}

    def world_ends(self, stats: Mapping[str, Any]) -> None:
        """Add the counts of a world that is about to end."""
        self._before = add_stats(self._before, stats)

    def with_world(self, stats: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sum of the counts of all earlier worlds and the current one."""
        return add_stats(self._before, stats)


def add_stats(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum of two results of `stats()`; counts that only one of them has are kept.

    Example:
        >>> add_stats({"rounds": 1, "operations": {}}, {"rounds": 2, "operations": {"join": {"requests": 3}}})
        {'rounds': 3, 'operations': {'join': {'requests': 3}}}
    """
    total: dict[str, Any] = dict(one)
    for name, value in other.items():
        total[name] = add_stats(one.get(name, {}), value) if isinstance(value, Mapping) else one.get(name, 0) + value
    return total


class WaitingShare:
    """The fraction of time spent waiting since an earlier call of `of`.

    Args:
        least: shortest time span in seconds.
        most: longest time span in seconds.
        clock: returns the time in seconds.
    """

    def __init__(self, least: float = 1.0, most: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._least, self._most, self._clock = least, most, clock
        self._seen: list[tuple[float, float]] = []

    def of(self, blocked: float) -> float:
        """Return the fraction, given the seconds spent waiting so far; 0 in the first call."""
        now = self._clock()
        older = [each for each in self._seen if now - each[0] >= self._least]
        # The newest call that is old enough. Several readers may call at different intervals.
        at, before = older[-1] if older else (self._seen[0] if self._seen else (now, blocked))
        kept = [each for each in self._seen if now - each[0] <= self._most]
        self._seen = [*(kept or self._seen[-1:]), (now, blocked)]
        return min(1.0, max(0.0, (blocked - before) / (now - at))) if now > at else 0.0


def operation_samples(operations: Mapping[str, Mapping[str, Any]]) -> list[Sample]:
    """Return the samples of the operations in a result of `stats()`."""
    samples = [
        Sample(_NAMES[count], float(counts[count]), (operation,))
        for operation, counts in operations.items()
        for count in _SUMMED
    ]
    reductions = operations.get("allreduce", {})
    copied = [(way, reductions.get(f"copied_{way}_bytes", 0)) for way in ("in", "out")]
    return samples + [Sample("farandole_copied_bytes", float(count), (way,)) for way, count in copied]


Reading = Sequence[Sample | tuple[str, Histogram]]
"""The content of an endpoint: samples, and histograms with their names."""
