"""What trainings measure becomes what policies read."""

from __future__ import annotations

import msgspec
import pytest

from farandole.queue.measures import report_of
from farandole.scheduler.adaptive.goodput import GoodputModel
from farandole.wire.rendezvous import Measures

ONE = Measures(32, 512, 64, hosts=1, workers=1, local=32.0, step=0.2, sync=0.0)
TWO = Measures(
    32, 512, 64, hosts=1, workers=2, local=32.0, step=0.25, sync=0.05, square=1.0, trace=320.0, progress=40.0
)


def test_a_report_is_what_the_adaptive_policy_reads() -> None:
    report = report_of([ONE, TWO], "a100", {"a100", "rtx"})
    assert report is not None and report.noise is not None
    assert (report.noise.sqr, report.noise.var) == (1.0, 10.0)  # the variance is that of a batch of 32
    assert report.limits.local == {"a100": (1.0, 64.0), "rtx": (1.0, 64.0)} and report.limits.initial == 32
    assert [row.workers for row in report.measured["a100"]] == [1, 2] and report.progress == 40.0
    # With noise, more workers with a larger batch get on faster.
    goodputs = GoodputModel(report).goodputs("a100", [(1, 1), (1, 2), (1, 4)])
    assert 0 < goodputs[0] < goodputs[1] < goodputs[2]


def test_before_the_noise_is_known_nothing_speaks_for_a_larger_batch() -> None:
    report = report_of([ONE], "a100", {"a100"})
    assert report is not None and report.noise is None and report.version < _version([ONE, TWO])
    best = GoodputModel(report).best("a100", 1, 1)
    assert best is not None and best.local * (best.accumulated + 1) == 32


def _version(measures: list[Measures]) -> int:
    report = report_of(measures, "a100", {"a100"})
    assert report is not None
    return report.version


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": float("nan")},
        {"local": 0.0},
        {"step": 0.01},
        {"workers": 0},
        {"hosts": 3},
        {"trace": -1.0},
        {"base": 0},
    ],
)
def test_what_makes_no_sense_is_left_out(wrong: dict[str, float]) -> None:
    nonsense = msgspec.structs.replace(TWO, **wrong)
    assert report_of([nonsense], "a100", {"a100"}) is None
    assert report_of([ONE, nonsense], "a100", {"a100"}) == report_of([ONE], "a100", {"a100"})


def test_nothing_measured_is_no_report() -> None:
    assert report_of([], "a100", {"a100"}) is None
