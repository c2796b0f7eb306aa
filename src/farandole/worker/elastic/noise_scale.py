"""The gradient noise scale, a measure of the noise of gradients, estimated from those that a training computes anyway.

The mean gradient over b samples is the true gradient G plus noise, whose covariance is that of one sample over b. So

    E |g_b|^2 = |G|^2 + tr(S) / b

(McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, appendix A.1). Two batch sizes, a part and the
whole, give two equations for |G|^2 and tr(S). Parts are the samples of one worker or, with one worker, those of the
first of several passes; the whole is all samples of the step. Both estimates are unbiased, but their quotient tr(S) /
|G|^2, the *noise scale*, is not: so both are smoothed before they are divided. The noise scale is about the batch size
up to which doubling the batch nearly halves the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A part of a step's samples: their number, and the squared norm of their mean gradient."""

    samples: int
    square: float


class Estimate(msgspec.Struct, frozen=True, array_like=True):
    """The estimates from one step: the true gradient's squared norm, and the trace of one sample's covariance.

    Either may be negative, because it is a difference of two random numbers.
    """

    square: float
    trace: float


def estimate(parts: Sequence[Part], whole: Part) -> Estimate | None:
    """Return the estimates from a step; None if its parts allow none: there are no parts, or each is the whole.

    Args:
        parts: disjoint parts of the whole, not necessarily all of it.
        whole: all samples of the step.

    Example:
        >>> estimate([Part(1, 5.0), Part(1, 3.0)], Part(2, 3.0))
        Estimate(square=2.0, trace=2.0)
    """
    parts = [part for part in parts if part.samples > 0]
    samples = sum(part.samples for part in parts)
    if samples == 0 or (len(parts) == 1 and samples >= whole.samples):
        return None
    # Weighted by samples, because the norm of a larger part is more certain.
    mean = sum(part.samples * part.square for part in parts) / samples
    trace = (mean - whole.square) / (len(parts) / samples - 1 / whole.samples)
    return Estimate(whole.square - trace / whole.samples, trace)


class NoiseScale(msgspec.Struct, frozen=True, array_like=True):
    """The estimates of many steps, exponentially smoothed, with a correction of the initial bias.

    Example:
        >>> noise = NoiseScale().updated(Estimate(square=2.0, trace=8.0))
        >>> noise.square, noise.trace, noise.scale
        (2.0, 8.0, 4.0)
    """

    sum_of_squares: float = 0.0
    sum_of_traces: float = 0.0
    weight: float = 0.0
    """The weight of both sums: 1 - smoothing ** count."""

    def updated(self, step: Estimate, smoothing: float = 0.9) -> NoiseScale:
        """Return the noise scale with one more estimate.

        Args:
            step: the estimate.
            smoothing: the weight of the earlier values, from 0 to 1.
        """
        rest = 1.0 - smoothing
        return NoiseScale(
            smoothing * self.sum_of_squares + rest * step.square,
            smoothing * self.sum_of_traces + rest * step.trace,
            smoothing * self.weight + rest,
        )

    @property
    def is_known(self) -> bool:
        """Whether there are estimates, and both the gradient and the noise are above 0."""
        return self.sum_of_squares > 0.0 and self.sum_of_traces > 0.0

    @property
    def square(self) -> float:
        """The squared norm of the true gradient."""
        return self.sum_of_squares / self.weight if self.weight else 0.0

    @property
    def trace(self) -> float:
        """The trace of the covariance of one sample's gradient."""
        return self.sum_of_traces / self.weight if self.weight else 0.0

    @property
    def scale(self) -> float:
        """The noise scale, in samples; 0 while it is not known."""
        return self.sum_of_traces / self.sum_of_squares if self.is_known else 0.0

    def gain(self, batch: float, base: float) -> float:
        """Return the number of steps with `base` samples that a step with `batch` samples is worth.

        It is AdaScale's gain (Johnson et al., "AdaScale SGD", ICML 2020): between 1 and batch / base for a larger
        batch. As long as the scale is not known, the gain is 1.

        Example:
            >>> NoiseScale(sum_of_squares=1.0, sum_of_traces=100.0, weight=1.0).gain(200, base=100)
            1.3333333333333333
        """
        if not self.is_known:
            return 1.0
        return (self.scale / base + 1.0) / (self.scale / batch + 1.0)
