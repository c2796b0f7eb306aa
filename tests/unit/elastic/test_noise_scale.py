"""The noise scale against closed forms, and synthetic gradients with a known covariance."""

from __future__ import annotations

import numpy as np
import pytest

from farandole.worker.elastic.noise_scale import Estimate, NoiseScale, Part, estimate

DIMENSIONS = 50


def mean_gradients(generator: np.random.Generator, parts: list[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the true gradient, and the mean gradients of parts of one step."""
    true = np.linspace(-1.0, 1.0, DIMENSIONS)
    deviations = np.linspace(0.5, 3.0, DIMENSIONS)
    samples = [true + generator.standard_normal((count, DIMENSIONS)) * deviations for count in parts]
    return true, [each.mean(axis=0) for each in samples]


@pytest.mark.parametrize("parts", [[4, 4], [8, 1], [3, 5, 2], [16] * 4])
def test_both_estimates_are_unbiased(parts: list[int]) -> None:
    generator = np.random.default_rng(1)
    found = []
    for _ in range(4000):
        true, means = mean_gradients(generator, parts)
        whole = sum(count * mean for count, mean in zip(parts, means, strict=True)) / sum(parts)
        told = [Part(count, float(mean @ mean)) for count, mean in zip(parts, means, strict=True)]
        step = estimate(told, Part(sum(parts), float(whole @ whole)))
        assert step is not None
        found.append(step)
    trace = float((np.linspace(0.5, 3.0, DIMENSIONS) ** 2).sum())
    for values, expected in (
        ([step.trace for step in found], trace),
        ([step.square for step in found], float(true @ true)),
    ):
        error = np.std(values) / np.sqrt(len(values))
        assert abs(np.mean(values) - expected) < 4 * error
        assert 4 * error < 0.25 * expected  # so that the line above can fail


def test_the_first_pass_alone_is_unbiased_as_well() -> None:
    generator = np.random.default_rng(2)
    traces = []
    for _ in range(4000):
        _, means = mean_gradients(generator, [6, 6])
        whole = (means[0] + means[1]) / 2
        step = estimate([Part(6, float(means[0] @ means[0]))], Part(12, float(whole @ whole)))
        assert step is not None
        traces.append(step.trace)
    expected = float((np.linspace(0.5, 3.0, DIMENSIONS) ** 2).sum())
    assert abs(np.mean(traces) - expected) < 4 * np.std(traces) / np.sqrt(len(traces))


def test_without_two_batch_sizes_there_is_no_estimate() -> None:
    assert estimate([Part(8, 2.0)], Part(8, 2.0)) is None
    assert estimate([Part(8, 2.0), Part(0, 0.0)], Part(8, 2.0)) is None
    assert estimate([], Part(8, 2.0)) is None


def test_gradients_without_noise_have_none() -> None:
    assert estimate([Part(4, 9.0), Part(2, 9.0)], Part(6, 9.0)) == Estimate(9.0, 0.0)
    assert not NoiseScale().updated(Estimate(9.0, 0.0)).is_known


def test_smoothing_has_no_bias_towards_its_beginning() -> None:
    noise = NoiseScale()
    for count in range(1, 60):
        noise = noise.updated(Estimate(2.0, 6.0))
        assert noise.square == pytest.approx(2.0) and noise.scale == pytest.approx(3.0), count
    for _ in range(60):
        noise = noise.updated(Estimate(2.0, 60.0))
    assert noise.scale == pytest.approx(30.0, rel=0.01)


@pytest.mark.parametrize("scale", [0.01, 1.0, 64.0, 1e6])
def test_the_gain_is_between_one_and_the_growth_of_the_batch(scale: float) -> None:
    noise = NoiseScale(1.0, scale, 1.0)
    gains = [noise.gain(32 * growth, 32) for growth in (1, 2, 3, 8, 100)]
    assert gains[0] == 1.0 and gains == sorted(gains)
    assert all(1.0 <= gain <= growth for gain, growth in zip(gains, (1, 2, 3, 8, 100), strict=True))
    # With much noise it is the growth, without any it is 1.
    assert gains[2] == pytest.approx(3.0, rel=0.01) if scale == 1e6 else gains[2] < 3.0
