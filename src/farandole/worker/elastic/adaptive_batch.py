"""`AdaptiveBatch`: a global batch size that follows the noise of the gradients, with a matching learning rate.

All decisions are pure functions: every rank has the same `Adaptation`, gets the same measurements of all ranks, and so
computes the same next `Adaptation`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from farandole.worker.elastic.batches import ConstantGlobalBatch
from farandole.worker.elastic.noise_scale import NoiseScale, Part, estimate

Rule = Literal["adascale", "square-root", "linear", "keep"]
RULES: Mapping[str, str] = {
    "adascale": "by the gain that the noise predicts (AdaScale), between 1 and the growth of the batch; for SGD",
    "square-root": "by the square root of the growth of the batch; for Adam and its like",
    "linear": "as the batch grows",
    "keep": "not at all",
}

# A batch that would change by less than this stays as it is: each change drops the samples that were read ahead.
_LEAST_CHANGE = 1.25
# The most by which it may grow at once: the noise was measured with the previous batch.
_MOST_CHANGE = 2.0
# Estimates before the first change.
_ENOUGH = 3


class AdaptiveBatch(msgspec.Struct, frozen=True):
    """Adapts the number of samples of all ranks to the gradient noise scale, between two bounds.

    If a scheduler chooses the job's batch, as a queue with the policy `adaptive` does, its choice is used instead,
    between the same bounds.

    With a batch as large as the noise scale, a training needs about twice the steps that it would need with an infinite
    batch, and twice the samples that it would need with a tiny one (McCandlish et al., 2018). The noise scale usually
    grows during a training.

    Args:
        min: the smallest global batch; the training begins with it.
        max: the largest global batch.
        most_in_pass: maximum number of samples of one worker in one pass; more are processed in several passes, whose
            gradients are accumulated. None: no limit.
        rate: the rule for the learning rate, one of `RULES`.
        base: the global batch for which the learning rate was chosen; None: `min`.
        every: the number of steps between two measurements of the noise.

    Raises:
        ValueError: the bounds contradict each other, or one is not positive.

    Example:
        >>> AdaptiveBatch(32, 1024).rate_factor(128, NoiseScale())
        1.0
        >>> AdaptiveBatch(32, 1024, rate="square-root").rate_factor(128, NoiseScale())
        2.0
    """

    min: int
    max: int
    most_in_pass: int | None = None
    rate: Rule = "adascale"
    base: int | None = None
    every: int = 25

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise ValueError(
                f"AdaptiveBatch({self.min}, {self.max}): give the smallest and the largest global batch, both at least "
                "1, the smallest first."
            )
        for name in ("most_in_pass", "base", "every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"AdaptiveBatch({name}={value}): it must be at least 1.")
        if self.rate not in RULES:
            raise ValueError(f"AdaptiveBatch(rate={self.rate!r}) is not valid: choose from {', '.join(RULES)}.")

    @property
    def base_batch(self) -> int:
        """The global batch for which the learning rate was chosen."""
        return self.min if self.base is None else self.base

    def passes(self, samples: int) -> int:
        """Return the number of passes in which a worker processes this number of samples."""
        return 1 if self.most_in_pass is None else max(1, -(-samples // self.most_in_pass))

    def rate_factor(self, batch: int, noise: NoiseScale) -> float:
        """Return the factor of the learning rate that was chosen for `base_batch`."""
        growth = batch / self.base_batch
        if self.rate == "adascale":
            return noise.gain(batch, self.base_batch)
        return {"square-root": math.sqrt(growth), "linear": growth, "keep": 1.0}[self.rate]

    def wanted(self, batch: int, noise: NoiseScale, scheduled: int = 0) -> int:
        """Return the size of the next batch.

        Args:
            batch: the present batch.
            noise: the noise scale of the gradients.
            scheduled: the batch that a scheduler has chosen, by the speed of this job and the needs of others; 0: none.
                It is always reached, in bounded steps.
        """
        if not noise.is_known and not scheduled:
            return batch
        bounded = min(max(scheduled or noise.scale, batch / _MOST_CHANGE), batch * _MOST_CHANGE)
        wanted = min(max(round(bounded), self.min), self.max)
        if scheduled:
            return wanted
        is_bound = wanted in (self.min, self.max) and wanted != batch
        return wanted if is_bound or not 1 / _LEAST_CHANGE < wanted / batch < _LEAST_CHANGE else batch


class Measured(msgspec.Struct, frozen=True, array_like=True):
    """One rank's measurements of a step, sent to the others."""

    part: Part
    """This rank's samples and their gradient; with a single worker, those of the first pass."""
    whole: Part
    """All samples and gradients in the result of the step."""
    seconds: float
    """The seconds of a step, on average since the last report."""
    waited: float = 0.0
    """The seconds of a step that this rank has waited for collectives, on average since the last report."""
    scheduled: int = 0
    """The batch that the scheduler has sent to this rank; 0: none. Rank 0's is used."""


class Adaptation(msgspec.Struct, frozen=True):
    """The state of the adaptation; the same on all ranks, sent to newcomers and saved with checkpoints."""

    batch: int
    """The samples of all ranks in a step."""
    noise: NoiseScale = NoiseScale()
    measured: int = 0
    """The number of estimates so far."""
    progress: float = 0.0
    """The number of steps with the base batch that would be worth as much as the steps so far, by `NoiseScale.gain`."""

    def counts(self, world_size: int) -> tuple[int, ...]:
        """Return the samples of each rank in a full step, by rank."""
        return ConstantGlobalBatch(self.batch).counts(world_size)

    def stepped(self, policy: AdaptiveBatch) -> Adaptation:
        """Return the adaptation after a step that counts."""
        gain = self.noise.gain(self.batch, policy.base_batch)
        return msgspec.structs.replace(self, progress=self.progress + gain)

    def heard(self, policy: AdaptiveBatch, measured: Sequence[Measured]) -> Adaptation:
        """Return the adaptation after a measurement on all ranks.

        Args:
            policy: the user's policy.
            measured: the measurements by rank, the same list on all ranks. A rank without samples has empty parts.
        """
        # Every rank has the same gradient of the whole, but processors may add up its squares differently.
        found = estimate([each.part for each in measured], measured[0].whole)
        scheduled = measured[0].scheduled
        noise, count = self.noise, self.measured
        if found is not None and math.isfinite(found.square) and math.isfinite(found.trace):
            noise, count = noise.updated(found), count + 1
        elif not scheduled:
            return self
        batch = policy.wanted(self.batch, noise, scheduled) if count >= _ENOUGH or scheduled else self.batch
        return Adaptation(batch, noise, count, self.progress)
