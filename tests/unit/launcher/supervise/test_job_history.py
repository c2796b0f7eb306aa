"""The history of a job, its view, and the metrics made of it."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from farandole.base.metrics.address import MetricsAddress
from farandole.base.metrics.metric_table import JOB_METRICS
from farandole.base.metrics.readings import Sample
from farandole.base.wire.rendezvous import Progress
from farandole.control.jobs.view import JobView, WorkerView
from farandole.control.launcher.supervise.job_history import SAVED_MOMENTS, JobHistory
from farandole.control.launcher.supervise.job_metrics import find_targets, read_job
from farandole.control.roster.events import Announce, Departure


def workers(world: tuple[int, ...], generation: int) -> Any:
    return SimpleNamespace(
        world=world,
        generation=generation,
        by_number=dict.fromkeys(world),
        host_of=lambda number: f"h{number % 2}",
        how_it_ended=lambda loss: "was killed by SIGKILL" if loss.worker == 1 else "",
    )


def test_losses_joins_and_worlds_are_recorded_and_counted() -> None:
    history = JobHistory()
    history.world_begins(Announce(1, (), (), (0, 1, 2), (-1, -1, -1)), workers((0, 1, 2), 1), 10.0)
    change = Announce(2, (), (), (0, 3), (0, -1), (Departure(1, 1, "silent"), Departure(2, 2, "left alone")))
    history.world_begins(change, workers((0, 3), 2), 20.0)
    assert (history.losses, history.joins) == (2, 1), "those of the first world do not join"
    assert [(each.kind, each.text, each.size, each.at) for each in history.moments] == [
        ("world", "3 workers begin as generation 1", 3, 10.0),
        ("loss", "rank 1 (worker 1 on h1): was killed by SIGKILL", 2, 20.0),
        ("loss", "rank 2 (worker 2 on h0): left alone", 2, 20.0),
        ("join", "worker 3 on h1 joins as rank 1", 2, 20.0),
        ("world", "2 workers go on as generation 2", 2, 20.0),
    ]


def test_stall_is_recorded_with_line_of_code() -> None:
    history = JobHistory(lambda: 5.0)
    seen = workers((0, 1), 1)
    for stalls in (0, 1, 1, 3):
        history.progress(1, Progress(7, 0.5, "", stalls, "train.py:42 in load" if stalls else ""), seen, seen)
    assert history.stalls == 3
    texts = [each.text for each in history.moments]
    assert texts == ["others wait for worker 1 (rank 1, on h1) at train.py:42 in load"] * 2, (
        "one for each report of more"
    )


def test_history_survives_take_over() -> None:
    before = JobHistory(lambda: 5.0)
    seen = workers((0, 1), 1)
    before.begins(2)
    before.losses, before.joins = 3, 2
    for stalls in range(1, 100):
        before.progress(1, Progress(7, 0.5, "", stalls), seen, seen)
    after = JobHistory(lambda: 6.0)
    after.go_on_from(pickle.loads(pickle.dumps(before.saved())))
    assert (after.losses, after.joins, after.stalls) == (3, 2, 99)
    assert after.moments == before.moments[-SAVED_MOMENTS:]
    after.progress(1, Progress(8, 0.5, "", 99), seen, seen)
    assert after.stalls == 99, "what a worker had told before is not counted again"
    after.progress(1, Progress(8, 0.5, "", 100), seen, seen)
    assert (after.stalls, after.moments[-1].at) == (100, 6.0)


def test_job_of_fixed_size_has_one_world() -> None:
    history = JobHistory(lambda: 5.0)
    history.begins(1)
    assert [(each.text, each.size, each.generation) for each in history.moments] == [
        ("1 worker begins as generation 1", 1, 1)
    ]


VIEW = JobView(
    generation=3,
    size=2,
    per_second=12.5,
    workers=(
        WorkerView(0, 0, "h0", metrics="127.0.0.1:4001", waiting=0.25),
        WorkerView(4, 1, "h1", metrics="0.0.0.0:4002"),
        WorkerView(1, None, "h1", runs=False, end="was killed by SIGKILL"),
    ),
    losses=1,
    joins=1,
)


def test_metrics_of_job_follow_its_view() -> None:
    reading = read_job(VIEW, "otter", ["python", "train it.py"])
    assert Sample("farandole_job", 1.0, ("otter", "python 'train it.py'")) in reading
    values = {each.name: each.value for each in reading if isinstance(each, Sample) and not each.labels}
    assert values == {
        "farandole_job_workers": 2,
        "farandole_job_world_size": 2,
        "farandole_job_generation": 3,
        "farandole_job_losses": 1,
        "farandole_job_joins": 1,
        "farandole_job_stalls": 0,
        "farandole_job_steps_per_second": 12.5,
    }
    assert Sample("farandole_job_worker_waiting_ratio", 0.25, ("0",)) in reading
    assert {each[0] for each in reading} == set(JOB_METRICS)


def test_targets_are_the_job_and_the_workers_that_serve_metrics() -> None:
    groups = find_targets(VIEW, "otter", MetricsAddress("127.0.0.1", 9478))
    assert [(group["targets"], group["labels"].get("farandole_worker")) for group in groups] == [
        (["127.0.0.1:9478"], None),
        (["127.0.0.1:4001"], "0"),
        (["h1:4002"], "4"),
    ]


@pytest.mark.parametrize("reported", [Progress(1, 0.0), Progress(1, 0.0, "127.0.0.1:1")])
def test_reports_of_unknown_workers_are_forgotten(reported: Progress) -> None:
    history = JobHistory()
    history.progress(7, reported, workers((0, 7), 1), workers((0, 7), 1))
    history.forget(workers((0,), 2))
    assert history.reports == {}
