"""AdaptiveBatch as a pure function of what the ranks measure."""

from __future__ import annotations

import msgspec
import pytest

from farandole.worker.elastic.adaptive_batch import RULES, Adaptation, AdaptiveBatch, Measured
from farandole.worker.elastic.noise_scale import NoiseScale, Part

POLICY = AdaptiveBatch(32, 512, every=1)


def told(batch: int, workers: int, square: float, trace: float) -> list[Measured]:
    """Return what ranks tell whose gradients are just as the expectation says."""
    each = batch // workers
    whole = Part(batch, square + trace / batch)
    return [Measured(Part(each, square + trace / each), whole, 0.1) for _ in range(workers)]


def after(policy: AdaptiveBatch, scale: float, steps: int, workers: int = 2) -> Adaptation:
    adaptation = Adaptation(policy.min)
    for _ in range(steps):
        adaptation = adaptation.heard(policy, told(adaptation.batch, workers, 1.0, scale))
    return adaptation


@pytest.mark.parametrize("workers", [2, 4])
def test_the_batch_comes_to_the_noise_scale(workers: int) -> None:
    adaptation = after(POLICY, 200.0, steps=40, workers=workers)
    assert adaptation.noise.scale == pytest.approx(200.0)
    assert 200 / 1.25 <= adaptation.batch <= 200 * 1.25


def test_the_batch_stays_within_its_bounds_and_reaches_them() -> None:
    assert after(POLICY, 1e9, steps=40).batch == 512
    assert after(POLICY, 0.01, steps=40).batch == 32


def test_it_grows_at_most_by_two_at_once_and_not_on_the_first_estimates() -> None:
    sizes = [after(POLICY, 1e9, steps).batch for steps in range(9)]
    assert sizes == [32, 32, 32, 64, 128, 256, 512, 512, 512]


def test_a_small_change_is_none() -> None:
    assert POLICY.wanted(100, NoiseScale(1.0, 120.0, 1.0)) == 100
    assert POLICY.wanted(100, NoiseScale(1.0, 130.0, 1.0)) == 130
    assert POLICY.wanted(100, NoiseScale(1.0, 70.0, 1.0)) == 70


def test_a_scheduled_batch_is_come_to_whatever_the_noise_says() -> None:
    adaptation, sizes = Adaptation(32), []
    for scheduled in (100, 100, 100, 90, 5000, 5000, 5000, 5000, 1):
        measured = told(adaptation.batch, 2, 1.0, 40.0)
        # That of rank 0 counts: another rank may have heard it earlier or later.
        measured[0] = msgspec.structs.replace(measured[0], scheduled=scheduled)
        measured[1] = msgspec.structs.replace(measured[1], scheduled=7)
        adaptation = adaptation.heard(POLICY, measured)
        sizes.append(adaptation.batch)
    assert sizes == [64, 100, 100, 90, 180, 360, 512, 512, 256]
    assert adaptation.measured == 9 and adaptation.noise.scale == pytest.approx(40.0)
    # When no batch is scheduled any more, it goes on by itself.
    assert adaptation.heard(POLICY, told(256, 2, 1.0, 40.0)).batch == 128


def test_a_scheduled_batch_needs_no_estimate() -> None:
    whole = Part(32, 2.0)
    measured = [Measured(Part(32, 2.0), whole, 0.1, scheduled=48), Measured(Part(0, 0.0), whole, 0.1)]
    assert Adaptation(32).heard(POLICY, measured) == Adaptation(48)


def test_it_is_shared_among_the_ranks_of_any_world() -> None:
    assert Adaptation(100).counts(3) == (34, 33, 33)
    assert sum(Adaptation(100).counts(7)) == 100


def test_ranks_without_samples_and_gradients_that_are_no_numbers_change_nothing() -> None:
    whole = Part(8, 2.0)
    alone = [Measured(Part(8, 2.0), whole, 0.1), Measured(Part(0, 0.0), whole, 0.1)]
    assert Adaptation(32).heard(POLICY, alone) == Adaptation(32)
    spoilt = told(32, 2, float("nan"), 1.0)
    assert Adaptation(32).heard(POLICY, spoilt) == Adaptation(32)


def test_what_the_learning_rate_does() -> None:
    noise = NoiseScale(1.0, 128.0, 1.0)
    factors = {rule: AdaptiveBatch(32, 512, rate=rule).rate_factor(128, noise) for rule in RULES}  # type: ignore[arg-type]
    assert factors == {"adascale": 5.0 / 2.0, "square-root": 2.0, "linear": 4.0, "keep": 1.0}
    assert AdaptiveBatch(32, 512, base=64, rate="linear").rate_factor(128, noise) == 2.0


def test_progress_counts_steps_of_the_base_batch() -> None:
    adaptation = Adaptation(64, NoiseScale(1.0, 1e12, 1.0))
    assert adaptation.stepped(POLICY).progress == pytest.approx(2.0)
    assert Adaptation(64).stepped(POLICY).progress == 1.0


def test_it_survives_as_a_message() -> None:
    adaptation = after(POLICY, 200.0, steps=10)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(adaptation), type=Adaptation) == adaptation


@pytest.mark.parametrize(("samples", "passes"), [(0, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_in_how_many_passes(samples: int, passes: int) -> None:
    assert AdaptiveBatch(1, 100, most_in_pass=8).passes(samples) == passes
    assert AdaptiveBatch(1, 100).passes(samples) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"min": 0, "max": 4}, "both at least 1"),
        ({"min": 8, "max": 4}, "the smallest first"),
        ({"min": 1, "max": 4, "every": 0}, "every=0"),
        ({"min": 1, "max": 4, "most_in_pass": 0}, "most_in_pass=0"),
        ({"min": 1, "max": 4, "rate": "cubic"}, "adascale, square-root, linear, keep"),
    ],
)
def test_what_cannot_be(arguments: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        AdaptiveBatch(**arguments)  # type: ignore[arg-type]
