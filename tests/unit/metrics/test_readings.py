"""What is counted, as data: totals over worlds, step times, the waiting share, and its names."""

from __future__ import annotations

import re

import pytest

from farandole.base.metrics.address import MetricsAddress, parse_metrics_address
from farandole.base.metrics.metric_table import COUNTER, GAUGE, HISTOGRAM, METRICS, exposed_name
from farandole.base.metrics.readings import (
    STEP_SECONDS,
    Histogram,
    Sample,
    StepTimer,
    WaitingShare,
    WorkerTotals,
    operation_samples,
)


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_totals_continue_when_counts_of_a_world_restart() -> None:
    totals = WorkerTotals()
    totals.world_ends({"rounds": 5, "operations": {"allreduce": {"requests": 7, "bytes": 700}}})
    totals.world_ends({"rounds": 2, "operations": {"allreduce": {"requests": 1, "bytes": 10}}})
    now = totals.with_world({"rounds": 1, "operations": {"allreduce": {"requests": 3, "bytes": 30}}})
    assert now == {"rounds": 8, "operations": {"allreduce": {"requests": 11, "bytes": 740}}}
    assert totals.with_world({})["rounds"] == 7, "between two worlds, nothing is lost and nothing counted twice"


def test_time_between_two_worlds_is_not_a_step() -> None:
    clock = Clock()
    timer = StepTimer(clock)
    for clock.now in (0.0, 0.02, 0.04):
        timer.step()
    timer.world_ends()
    for clock.now in (60.0, 60.2):
        timer.step()
    histogram = timer.histogram()
    assert sum(histogram.counts) == 3
    assert histogram.total == pytest.approx(0.24)
    assert histogram.counts[STEP_SECONDS.index(0.025)] == 2
    assert histogram.counts[STEP_SECONDS.index(0.25)] == 1


def test_waiting_share_covers_the_latest_seconds() -> None:
    clock = Clock()
    share = WaitingShare(least=1.0, most=10.0, clock=clock)
    assert share.of(0.0) == 0.0
    clock.now = 2.0
    assert share.of(1.0) == pytest.approx(0.5)
    clock.now = 2.1  # Another reader, just after: the time since is too short to say anything.
    assert share.of(1.0) == pytest.approx(1.0 / 2.1)
    clock.now = 4.0
    assert share.of(1.0) == 0.0
    clock.now = 100.0
    assert share.of(49.0) == pytest.approx(0.5)


def test_samples_of_operations_have_the_counts_of_stats() -> None:
    counts = {
        "requests": 4,
        "buckets": 2,
        "bytes": 4096,
        "waiting_seconds": 0.5,
        "negotiating_seconds": 0.25,
        "moving_seconds": 0.125,
        "copied_in_bytes": 10,
        "copied_out_bytes": 20,
    }
    samples = operation_samples({"allreduce": counts})
    assert Sample("farandole_collectives", 4.0, ("allreduce",)) in samples
    assert Sample("farandole_collective_bytes", 4096.0, ("allreduce",)) in samples
    assert Sample("farandole_waiting_seconds", 0.5, ("allreduce",)) in samples
    assert Sample("farandole_copied_bytes", 20.0, ("out",)) in samples
    assert len(samples) == 6 + 2


def test_names_follow_the_conventions() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"farandole(_[a-z]+)+", name)
        assert not name.endswith(("_total", "_info", "_count", "_sum", "_bucket")), "the client adds these"
        assert metric.meaning.endswith(".")
        assert not {"job", "instance", "le", "quantile"}.intersection(metric.labels), "Prometheus' own labels"
        if "seconds" in name and metric.kind == GAUGE:
            assert name.endswith("per_second")
    assert exposed_name("farandole_steps") == "farandole_steps_total"
    assert {metric.kind for metric in METRICS.values()} >= {COUNTER, GAUGE, HISTOGRAM}


@pytest.mark.parametrize("text", ["", "http", "65536", "-1", ":9478", "localhost:", "1.2.3.4:x", "²"])
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_metrics_address(text)


def test_addresses() -> None:
    assert parse_metrics_address("0.0.0.0:1") == MetricsAddress("0.0.0.0", 1)
    assert not parse_metrics_address("0.0.0.0:1").is_loopback
    assert not parse_metrics_address("h1:1").is_loopback
    assert all(parse_metrics_address(each).is_loopback for each in ("1", "[::1]:2", "localhost:3", "127.0.0.2:4"))


def test_a_histogram_has_a_count_for_each_bound_and_one_beyond() -> None:
    assert len(StepTimer().histogram().counts) == len(STEP_SECONDS) + 1
    assert Histogram((), 0.0).total == 0.0
