"""Goodput: how fast a job gets on, with the batch size that suits a configuration best.

Progress is counted in steps at the initial batch size. A step at `scale` times that size is worth

    gain = (var + sqr) / (var / scale + sqr)

of them, with the gradient's squared norm `sqr` and its variance `var` (McCandlish et al. 2018, "An Empirical Model of
Large-Batch Training"; Pollux, OSDI '21). Goodput is gain divided by the seconds of a step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from farandole.scheduler.adaptive.throughput import Array, ThroughputModel
from farandole.scheduler.job import BatchLimits, Noise, Report

_CHOICES = 50


class Batch(NamedTuple):
    """Samples of each worker in one pass, passes accumulated before the one that reduces, and the goodput expected."""

    local: int
    accumulated: int
    goodput: float


class GoodputModel:
    """What a job's report says about all configurations.

    Args:
        before: the model from an earlier report of the same job; its throughput is used again if nothing was measured
            meanwhile.
    """

    def __init__(self, report: Report, before: GoodputModel | None = None) -> None:
        self.report = report
        self.limits: BatchLimits = report.limits
        self._noise = report.noise
        same = before is not None and before.report.measured is report.measured
        self._throughput: ThroughputModel = (
            before._throughput if before is not None and same else ThroughputModel(report)
        )
        self._known: dict[tuple[str, int, int, float], Batch | None] = {}

    def best(self, type_: str, nodes: int, workers: int, memory: float | None = None) -> Batch | None:
        """Return the best batch on so many nodes and workers; None if the job cannot run there.

        Args:
            memory: the most samples of a pass; None: as the job's limits say.
        """
        most = self.limits.local[type_][1] if memory is None else memory
        key = (type_, nodes, workers, most)
        if key not in self._known:
            self._known[key] = self._best(type_, nodes, workers, most)
        return self._known[key]

    def goodput(self, type_: str, nodes: int, workers: int, batch: int | None = None) -> float:
        """Return the progress in a second, with the best batch size or a fixed one; 0 if the job cannot run there."""
        if batch is None:
            best = self.best(type_, nodes, workers)
            return best.goodput if best is not None else 0.0
        if type_ not in self.limits.local or not self._throughput.knows(type_):
            return 0.0
        batches = np.array([float(batch)])
        return float(self._goodputs(type_, nodes, workers, batches, self.limits.local[type_][1])[2][0])

    def _best(self, type_: str, nodes: int, workers: int, most: float) -> Batch | None:
        limits = self.limits
        if type_ not in limits.local or not self._throughput.knows(type_):
            return None
        smallest = max(limits.initial, limits.local[type_][0] * workers)
        if smallest > limits.largest:
            return None
        batches = np.geomspace(smallest, limits.largest, _CHOICES) if self._noise else np.array([float(smallest)])
        local, accumulated, goodputs = self._goodputs(type_, nodes, workers, batches, most)
        fits = workers * local * (accumulated + 1) <= limits.largest
        index = int(np.argmax(np.where(fits, goodputs, 0.0))) if fits.any() else 0
        return Batch(int(local[index]), int(accumulated[index]), float(goodputs[index]))

    def _goodputs(
        self, type_: str, nodes: int, workers: int, batches: Array, most: float
    ) -> tuple[Array, Array, Array]:
        """Return samples of a pass, accumulated passes and goodput for each batch size."""
        accumulated = np.ceil(batches / workers / most - 1e-9) - 1
        if workers == 1:
            # One worker sees the gradient's noise only between two passes.
            accumulated = np.where(batches > self.limits.initial, np.maximum(accumulated, 1), accumulated)
        local = np.ceil(batches / workers / (accumulated + 1) - 1e-9)
        compute, step = self._throughput.times(type_, nodes, workers, local)
        scale = workers * local * (accumulated + 1) / self.limits.initial
        seconds = accumulated * compute + step
        return local, accumulated, gain(self._noise, scale) / seconds


def gain(noise: Noise | None, scale: Array) -> Array:
    """Return how many steps at the initial batch size a step at `scale` times that size is worth.

    Before the noise is known, a larger batch is taken to be worth nothing more.
    """
    if noise is None:
        return np.ones_like(scale)
    return np.asarray((noise.var + noise.sqr) / (noise.var / scale + noise.sqr))
