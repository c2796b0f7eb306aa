"""Measurements of trainings become reports for the policies."""

from __future__ import annotations

import msgspec
import pytest

from farandole.base.wire.rendezvous import Measures
from farandole.control.queue.measures import UNTRIED, report_of, with_guesses
from farandole.control.scheduler.adaptive.goodput import GoodputModel
from farandole.control.scheduler.job import TrainingReport

ONE = Measures(32, 512, 64, hosts=1, workers=1, local=32.0, step=0.2, sync=0.0)
TWO = Measures(
    32, 512, 64, hosts=1, workers=2, local=32.0, step=0.25, sync=0.05, square=1.0, trace=320.0, progress=40.0
)


def test_report_has_what_adaptive_policy_needs() -> None:
    report = report_of([ONE, TWO], "a100", {"h1": "a100", "h2": "rtx"})
    assert report is not None and report.noise is not None
    assert (report.noise.sqr, report.noise.var) == (1.0, 10.0)  # the variance is that of a batch of 32
    assert report.limits.local == {"a100": (1.0, 64.0), "rtx": (1.0, 64.0)} and report.limits.initial == 32
    assert [row.workers for row in report.measured["a100"]] == [1, 2] and report.progress == 40.0
    # With noise, more workers with a larger batch get on faster.
    goodputs = GoodputModel(report).goodputs("a100", [(1, 1), (1, 2), (1, 4)])
    assert 0 < goodputs[0] < goodputs[1] < goodputs[2]


def test_batch_stays_smallest_until_noise_is_known() -> None:
    report = report_of([ONE], "a100", {"h1": "a100"})
    assert report is not None and report.noise is None and report.version < _version([ONE, TWO])
    best = GoodputModel(report).best("a100", 1, 1)
    assert best is not None and best.local * (best.accumulated + 1) == 32


def _version(measures: list[Measures]) -> int:
    report = report_of(measures, "a100", {"h1": "a100"})
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
def test_implausible_measurements_are_omitted(wrong: dict[str, float]) -> None:
    nonsense = msgspec.structs.replace(TWO, **wrong)
    assert report_of([nonsense], "a100", {"h1": "a100"}) is None
    assert report_of([ONE, nonsense], "a100", {"h1": "a100"}) == report_of([ONE], "a100", {"h1": "a100"})


def test_job_without_measurements_has_no_report() -> None:
    assert report_of([], "a100", {"h1": "a100"}) is None


def on(host: str, seconds: float, local: float = 32.0, workers: int = 1) -> Measures:
    """Return what a job has measured on a host, without an all-reduce."""
    return msgspec.structs.replace(ONE, on=(host,), step=seconds, local=local, workers=workers)


HOSTS = {"h1": "a100", "h2": "rtx", "h3": "a100"}


def reports_of(**measured: list[Measures]) -> dict[str, TrainingReport]:
    found = {name: report_of(measures, "a100", HOSTS) for name, measures in measured.items()}
    return with_guesses({name: report for name, report in found.items() if report is not None}, ["a100", "rtx"])


def one_slot(reports: dict[str, TrainingReport], name: str, type_: str) -> list[tuple[float, float]]:
    return [(row.local, pytest.approx(row.step)) for row in reports[name].one_slot.get(type_, ())]


def test_measurements_belong_to_type_of_their_hosts() -> None:
    both = msgspec.structs.replace(TWO, hosts=2, on=("h1", "h2"))
    report = report_of([on("h1", 0.2), on("h2", 0.4), on("h3", 0.3), on("gone", 9.0), both], "rtx", HOSTS)
    assert report is not None and report.noise is not None, "what hosts of two types measured still has the noise"
    seconds = {type_: [row.step for row in rows] for type_, rows in report.measured.items()}
    assert seconds == {"a100": [0.3], "rtx": [0.4]}, "the latest of equal configurations counts"


def test_estimate_for_a_type_comes_from_jobs_that_ran_on_both_types() -> None:
    both = [on("h1", 0.2), on("h2", 0.5)]
    reports = reports_of(a=both, b=[on("h1", 0.1), on("h1", 0.3, local=64.0)], c=[on("h2", 0.7)])
    assert one_slot(reports, "b", "rtx") == [(32.0, 0.25), (64.0, 0.75)]
    assert one_slot(reports, "c", "a100") == [(32.0, 0.28)]
    assert reports["a"].one_slot == {} and "a100" not in reports["b"].one_slot
    assert GoodputModel(reports["b"]).goodputs("rtx", [(1, 1)])[0] > 0


def test_one_job_explores_an_untried_type() -> None:
    reports = reports_of(b=[on("h1", 0.2)], a=[on("h1", 0.2)], c=[])
    assert one_slot(reports, "a", "rtx") == [(32.0, 0.2 * UNTRIED)] and one_slot(reports, "b", "rtx") == [(32.0, 0.2)]
    # Two jobs, each on its own type: nothing compares them yet.
    apart = reports_of(a=[on("h1", 0.2)], b=[on("h2", 0.3)])
    assert one_slot(apart, "a", "rtx") == [(32.0, 0.2 * UNTRIED)]
    assert one_slot(apart, "b", "a100") == [(32.0, 0.3 * UNTRIED)]
