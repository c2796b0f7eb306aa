"""Goodput: a job's progress per second, with the batch size that is best for a configuration.

Progress is counted in steps at the initial batch size. A step at `scale` times that size is worth

    gain = (var + sqr) / (var / scale + sqr)

such steps, with the gradient's squared norm `sqr` and its variance `var` (McCandlish et al. 2018, "An Empirical Model
of Large-Batch Training"; Pollux, OSDI '21). Goodput is gain divided by the seconds of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from farandole.control.scheduler.adaptive.throughput import Array, Known, ThroughputModel
from farandole.control.scheduler.job import BatchLimits, Noise, TrainingReport

_GRID = np.linspace(0.0, 1.0, 50)
"""The batch sizes that are tried, as positions from 0 (smallest) to 1 (largest) on a logarithmic scale."""


class BatchChoice(NamedTuple):
    """A batch size, and the goodput that is expected with it."""

    local: int
    """Samples of each worker in a pass."""
    accumulated: int
    """Number of passes without an allreduce before the pass with one."""
    goodput: float


class GoodputModel:
    """A model of a job's goodput in all configurations, fitted to its report.

    Args:
        report: the job's report.
        before: model of an earlier report of the same job; its throughput is reused if nothing was measured meanwhile.
        known: measurements of other jobs of the same application.
    """

    def __init__(self, report: TrainingReport, before: GoodputModel | None = None, known: Known | None = None) -> None:
        self.report = report
        self.limits: BatchLimits = report.limits
        self._noise = report.noise
        self.known = known
        same = before is not None and before.report.measured is report.measured and before.known is known
        self._throughput: ThroughputModel = (
            before._throughput if before is not None and same else ThroughputModel(report, known)
        )
        self._known: dict[tuple[str, int, int], float] = {}
        self._batches: dict[tuple[str, int, int, float | None], BatchChoice | None] = {}
        if before is not None and same and before._noise == report.noise and before.limits == report.limits:
            self._known, self._batches = before._known, before._batches  # Only the progress has changed.

    def best(self, type_: str, nodes: int, workers: int, memory: float | None = None) -> BatchChoice | None:
        """Return the best batch for a configuration; None if the job cannot run there.

        Args:
            type_: type of the nodes.
            nodes: number of nodes.
            workers: number of workers.
            memory: largest number of samples in a pass; None: the job's limit.
        """
        key = (type_, nodes, workers, memory)
        if key not in self._batches:
            self._batches[key] = self._best(type_, [(nodes, workers)], memory)[0]
        return self._batches[key]

    def goodputs(self, type_: str, layouts: Sequence[tuple[int, int]], batch: int | None = None) -> list[float]:
        """Return the goodput of each layout; 0 where the job cannot run.

        Args:
            type_: type of the nodes.
            layouts: pairs of numbers of nodes and workers.
            batch: fixed batch size; None: the best one for each layout.
        """
        if type_ not in self.limits.local or not self._throughput.knows(type_):
            return [0.0] * len(layouts)
        asked = [layout for layout in layouts if (type_, *layout) not in self._known]
        if asked:
            found = self._fixed(type_, asked, batch) if batch is not None else self._adapted(type_, asked)
            self._known |= {(type_, *layout): value for layout, value in zip(asked, found, strict=True)}
        return [self._known[type_, nodes, workers] for nodes, workers in layouts]

    def _adapted(self, type_: str, layouts: Sequence[tuple[int, int]]) -> list[float]:
        found = self._best(type_, layouts, None)
        self._batches |= {(type_, *layout, None): best for layout, best in zip(layouts, found, strict=True)}
        return [best.goodput if best is not None else 0.0 for best in found]

    def _fixed(self, type_: str, layouts: Sequence[tuple[int, int]], batch: int) -> list[float]:
        batches = np.full((len(layouts), 1), float(batch))
        values = self._evaluate(type_, layouts, batches, self.limits.local[type_][1])[2][:, 0]
        smallest = self.limits.local[type_][0]
        return [
            float(value) if workers * smallest <= batch else 0.0
            for value, (_, workers) in zip(values, layouts, strict=True)
        ]

    def _best(self, type_: str, layouts: Sequence[tuple[int, int]], memory: float | None) -> list[BatchChoice | None]:
        limits = self.limits
        if type_ not in limits.local or not self._throughput.knows(type_):
            return [None] * len(layouts)
        least, most = limits.local[type_]
        smallest = np.array([max(limits.initial, least * workers) for _, workers in layouts])[:, np.newaxis]
        # Until the noise is known, only the smallest batch is tried.
        batches = smallest * (limits.largest / smallest) ** (_GRID if self._noise else _GRID[:1])
        evaluated = self._evaluate(type_, layouts, batches, most if memory is None else memory)
        local, accumulated, goodputs = evaluated
        workers = np.array([workers for _, workers in layouts])[:, np.newaxis]
        fits = workers * local * (accumulated + 1) <= limits.largest
        chosen = np.where(fits.any(axis=1), np.argmax(np.where(fits, goodputs, -1.0), axis=1), 0)
        return [
            BatchChoice(int(local[row, at]), int(accumulated[row, at]), float(goodputs[row, at]))
            if smallest[row, 0] <= limits.largest
            else None
            for row, at in enumerate(chosen)
        ]

    def _evaluate(
        self, type_: str, layouts: Sequence[tuple[int, int]], batches: Array, most: float
    ) -> tuple[Array, Array, Array]:
        """Return samples of a pass, accumulated passes and goodput; row i of `batches` has the sizes of layout i."""
        workers = np.array([float(workers) for _, workers in layouts])[:, np.newaxis]
        accumulated = np.ceil(batches / workers / most - 1e-9) - 1
        # One worker can measure the gradient's noise only between two passes.
        twice = (workers == 1) & (batches > self.limits.initial)
        accumulated = np.where(twice, np.maximum(accumulated, 1), accumulated)
        local = np.ceil(batches / workers / (accumulated + 1) - 1e-9)
        compute, step = self._throughput.times(type_, layouts, local)
        scale = workers * local * (accumulated + 1) / self.limits.initial
        return local, accumulated, gain(self._noise, scale) / (accumulated * compute + step)


def gain(noise: Noise | None, scale: Array) -> Array:
    """Return the number of steps at the initial batch size that a step at `scale` times that size is worth.

    Until the noise is known, a larger batch is assumed to gain nothing.
    """
    if noise is None:
        return np.ones_like(scale)
    return np.asarray((noise.var + noise.sqr) / (noise.var / scale + noise.sqr))
