"""The true behaviour of one application: step times, gradient noise, and the progress that a training needs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farandole.control.scheduler.job import BatchLimits, Measurement, Noise
from farandole.control.simulator.step_times import StepTimes


@dataclass(frozen=True)
class Constants:
    """The constants of an application, in addition to its tables.

    Attributes:
        restart: seconds without progress after each change of the allocation.
        slowdown: ratio of a training's step times to the measured ones.
    """

    restart: float = 30.0
    slowdown: float = 1.0
    max_local: Mapping[str, float] = field(default_factory=dict)
    """The largest local batch by type of node, where it differs from the largest measured one."""


@dataclass(frozen=True)
class Convergence:
    """Training runs at several batch sizes: for each size and epoch, the progress and the gradient's noise."""

    batches: tuple[int, ...]
    thresholds: tuple[float, ...]
    """Progress at which each epoch ends: the minimum over all runs."""
    noise: Mapping[int, Sequence[Noise]]

    @classmethod
    def of_runs(cls, runs: Mapping[int, Sequence[tuple[float, Noise]]]) -> Convergence:
        """Return the convergence that several runs show; each run has the progress and the noise of each epoch."""
        epochs = min(len(rows) for rows in runs.values())
        thresholds = tuple(min(rows[epoch][0] for rows in runs.values()) for epoch in range(epochs))
        return cls(
            tuple(sorted(runs)), thresholds, {batch: [noise for _, noise in rows] for batch, rows in runs.items()}
        )

    def noise_at(self, epoch: int, batch: float) -> Noise:
        """Return the noise in an epoch (counted from 0), interpolated linearly between the two nearest batch sizes."""
        above = bisect_left(self.batches, batch)
        if above == len(self.batches):
            return self.noise[self.batches[-1]][epoch]
        high = self.noise[self.batches[above]][epoch]
        if above == 0 or self.batches[above] == batch:
            return high
        low = self.noise[self.batches[above - 1]][epoch]
        part = (batch - self.batches[above - 1]) / (self.batches[above] - self.batches[above - 1])
        return Noise(low.sqr + part * (high.sqr - low.sqr), low.var + part * (high.var - low.var))


def gain(noise: Noise, scale: float) -> float:
    """Return the number of steps at the initial batch size that one step at `scale` times that size is worth.

    McCandlish et al. 2018, "An Empirical Model of Large-Batch Training"; in this form in Pollux (OSDI '21).
    """
    return (noise.var + noise.sqr) / (noise.var / scale + noise.sqr)


@dataclass
class Application:
    """An application: its tables by type of node, its convergence, and its constants."""

    name: str
    steps: Mapping[str, StepTimes]
    convergence: Convergence
    constants: Constants
    one_slot: Mapping[str, tuple[Measurement, ...]]
    """Measurements of a profile with one slot, by type of node; policies may see them."""

    def __post_init__(self) -> None:
        local = {type_: (times.min_local, self._max_local(type_)) for type_, times in self.steps.items()}
        self.limits = BatchLimits(self.convergence.batches[0], self.convergence.batches[-1], local)
        self._rates: dict[tuple[int, int], tuple[float, Noise]] = {}

    def _max_local(self, type_: str) -> float:
        return self.constants.max_local.get(type_, self.steps[type_].max_local)

    @property
    def epochs(self) -> int:
        return len(self.convergence.thresholds)

    def gain_and_noise(self, epoch: int, batch: int) -> tuple[float, Noise]:
        """Return the true gain of a step at this batch size in an epoch, and the noise that determines it."""
        key = (epoch, batch)
        if key not in self._rates:
            noise = self.convergence.noise_at(epoch, batch)
            self._rates[key] = gain(noise, batch / self.limits.initial), noise
        return self._rates[key]
