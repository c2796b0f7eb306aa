"""The simulated world is the published one: figures of the published simulators, and calculations by hand.

These tests need the published profiles and workloads, which the project does not contain.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from schedules import published_traces

from farandole.control.scheduler.cluster import Allocation, Cluster, parse_cluster
from farandole.control.scheduler.job import Decision, PolicyJob
from farandole.control.scheduler.policies import make_policy
from farandole.control.simulator.agents import ReportingAgent
from farandole.control.simulator.application import Application
from farandole.control.simulator.job_trace import TraceJob, Workload, read_workloads
from farandole.control.simulator.job_work import Training
from farandole.control.simulator.profiles import read_profiles
from farandole.control.simulator.setup import Options, simulate
from farandole.control.simulator.simulated_job import SimulatedJob
from farandole.control.simulator.simulation import Simulation
from farandole.control.simulator.tables import read_texts

HETEROGENEOUS = "aws:6x4,dgx-ext:2x8,rtx:3x8"
LARGE = "aws:16x4,dgx-ext:2x8,rtx:3x8"


@pytest.fixture(scope="module")
def applications() -> Mapping[str, Application]:
    return read_profiles(published_traces())


@pytest.fixture(scope="module")
def texts() -> Mapping[str, str]:
    return read_texts(published_traces())


STEPS = [
    ("cifar10", "aws", (1,), 128, 0.103115, 0.000525),
    ("cifar10", "aws", (1,), 100, 0.082530, 0.000525),
    ("bert", "rtx", (4,), 10, 0.575639, 0.197987),
    ("bert", "rtx", (8, 8), 12, 0.999136, 0.555533),
    ("bert", "rtx", (8, 8, 8), 12, 1.070941, 0.623518),
    ("imagenet", "dgx-ext", (8, 8), 300, 0.469552, 0.133017),
    ("yolov3", "aws", (2, 4, 1), 7, 1.056303, 0.704376),
    ("deepspeech2", "aws", (4,) * 5, 33, 1.458204, 0.441984),
    ("imagenet", "aws", (4,) * 16, 150, 0.883241, 0.142361),
]


@pytest.mark.parametrize(("app", "type_", "shape", "local", "step", "sync"), STEPS)
def test_step_times(
    applications: Mapping[str, Application],
    app: str,
    type_: str,
    shape: tuple[int, ...],
    local: int,
    step: float,
    sync: float,
) -> None:
    time = applications[app].steps[type_].at(shape, local)
    assert (round(time.step, 6), round(time.sync, 6)) == (step, sync)


@pytest.mark.parametrize(
    ("app", "batch", "epoch", "gain"),
    [
        ("cifar10", 700, 10, 4.395322),
        ("imagenet", 5000, 45, 22.028817),
        ("bert", 100, 1, 8.233899),
        ("yolov3", 24, 49, 2.993633),
    ],
)
def test_gains(applications: Mapping[str, Application], app: str, batch: int, epoch: int, gain: float) -> None:
    assert applications[app].gain_and_noise(epoch, batch)[0] == pytest.approx(gain, abs=1e-6)


def test_thresholds(applications: Mapping[str, Application]) -> None:
    cifar10 = applications["cifar10"].convergence.thresholds
    assert (round(cifar10[0], 4), round(cifar10[10]), round(cifar10[-1], 1)) == (390.7144, 4297, 39062.9)
    assert round(applications["imagenet"].convergence.thresholds[45]) == 294669


@dataclass
class Script:
    """A policy for one job that is told when it has what: pairs of a time and what holds from then on."""

    plan: Sequence[tuple[float, Allocation | None]]
    every_round: bool = False
    resizes: bool = True
    seen: list[PolicyJob] = field(default_factory=list)

    def decide(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        (job,) = jobs
        self.seen.append(job)
        *_, allocation = (allocation for time, allocation in self.plan if time <= now)
        later = [time for time, _ in self.plan if time > now]
        review_at = now + 60 if self.every_round else min(later, default=None)
        return Decision({job.name: allocation} if allocation else {}, {}, review_at)


def on(cluster: Cluster, type_: str, shape: Sequence[int]) -> Allocation:
    return Allocation(type_, tuple(zip(cluster.indices_of[type_], shape, strict=False)))


def run_alone(
    application: Application, batch: int, type_: str, shape: Sequence[int], every_round: bool = False
) -> SimulatedJob:
    """Simulate a job at a fixed batch size, submitted at 0, with rounds of 60 s."""
    cluster, restart = parse_cluster(LARGE), application.constants.restart
    training = Training(application, ReportingAgent(application, batch))
    job = SimulatedJob(PolicyJob("job", 0.0, sum(shape), 1, 64, restart_cost=restart), training, restart)
    Simulation(cluster, [job], Script([(0.0, on(cluster, type_, shape))], every_round), 60).run()
    return job


ALONE = [
    ("cifar10", "aws", (1,), 128, 7369),
    ("cifar10", "rtx", (4,), 1024, 1300),
    ("cifar10", "dgx-ext", (8,), 2048, 397),
    ("deepspeech2", "rtx", (8,), 320, 2655),
    ("bert", "dgx-ext", (4,), 96, 690),
    ("bert", "aws", (4, 4), 96, 5948),
    ("yolov3", "rtx", (8,), 128, 13093),
    ("yolov3", "dgx-ext", (2,), 64, 12815),
    ("imagenet", "dgx-ext", (8, 8), 6400, 18829),
    ("imagenet", "aws", (4, 4, 4, 4), 3200, 54110),
    ("imagenet", "rtx", (1,), 400, 325915),
    ("ncf", "dgx-ext", (1,), 32768, 126),
]


@pytest.mark.parametrize(("app", "type_", "shape", "batch", "end"), ALONE)
def test_completion_alone_to_the_second(
    applications: Mapping[str, Application], app: str, type_: str, shape: tuple[int, ...], batch: int, end: int
) -> None:
    assert run_alone(applications[app], batch, type_, shape).completed == end
    if end < 20_000:
        assert run_alone(applications[app], batch, type_, shape, every_round=True).completed == end


def test_restarts(applications: Mapping[str, Application]) -> None:
    cluster, application = parse_cluster(LARGE), applications["cifar10"]
    plan = [
        (60.0, on(cluster, "rtx", (4,))),
        (660.0, on(cluster, "rtx", (2, 2))),
        (1260.0, None),
        (1560.0, on(cluster, "dgx-ext", (4,))),
    ]
    script = Script(plan, every_round=True)
    job = SimulatedJob(PolicyJob("job", 0.0, 4, 1, 64), Training(application, ReportingAgent(application, 512)), 50)
    Simulation(cluster, [job], script, 60).run()
    progress = {60.0 * (index + 1): view.report.progress for index, view in enumerate(script.seen) if view.report}
    # A report is of the last step, the truth is a little ahead of it.
    assert job.completed == 1864 and job.view.account.restarts == 2
    assert progress[1560.0] == progress[1320.0]
    training = Training(application, ReportingAgent(application, 512))
    training.placed(on(cluster, "rtx", (4,)))
    training.run(550, on(cluster, "rtx", (4,)))
    assert training.progress == pytest.approx(10333.032, abs=0.001)
    training.placed(on(cluster, "rtx", (2, 2)))
    training.run(550, on(cluster, "rtx", (2, 2)))
    assert training.progress == pytest.approx(22536.352, abs=0.001)


# --- by hand: nothing below uses the simulator's own arithmetic ------------------------------------------------------


def seconds_by_hand(
    texts: Mapping[str, str], app: str, type_: str, shape: str, batch: int, local: int, extra: int
) -> float:
    """Return how long a training takes, from the tables alone: epochs times steps times seconds.

    The local batch must be in the table of the placement, and there must be a validation run with this batch size.
    """
    folder = f"profiles/apps/{app}"

    def table(name: str) -> list[dict[str, str]]:
        return list(csv.DictReader(texts[f"{folder}/{name}.csv"].splitlines()))

    rows = [row for row in table(f"placements-{type_}") if row["placement"] == shape]
    near = sorted(rows, key=lambda row: abs(float(row["local_bsz"]) - local))[:2]
    near.sort(key=lambda row: float(row["local_bsz"]))
    low, high = (float(row["local_bsz"]) for row in near)
    part = (local - low) / (high - low)
    step, sync = (
        float(near[0][name]) * (1 - part) + float(near[1][name]) * part for name in ("step_time", "sync_time")
    )
    sizes = [int(name.rpartition("-")[2][:-4]) for name in texts if name.startswith(f"{folder}/validation-")]
    runs = {size: table(f"validation-{size}") for size in sizes}
    done, total = 0.0, 0.0
    for epoch, row in enumerate(runs[batch]):
        goal = min(float(run[epoch]["progress"]) for run in runs.values())
        scale, sqr, var = batch / min(sizes), float(row["grad_sqr"]), float(row["grad_var"])
        steps = (goal - done) * (var / scale + sqr) / (var + sqr)
        total += steps * (step + extra * (step - sync))
        done = goal
    return total


SLOWDOWN = {"cifar10": 1.8, "ncf": 1.5}
RESTART = {"cifar10": 50, "deepspeech2": 25, "bert": 120, "yolov3": 80, "imagenet": 250, "ncf": 15}


@pytest.mark.parametrize(
    ("app", "type_", "shape", "batch", "local", "extra"),
    [
        ("cifar10", "rtx", (4,), 1024, 256, 0),
        ("deepspeech2", "rtx", (8,), 320, 40, 0),
        ("bert", "dgx-ext", (4,), 96, 24, 0),
        ("yolov3", "rtx", (8,), 128, 8, 1),
        ("imagenet", "aws", (4, 4, 4, 4), 3200, 200, 0),
        ("ncf", "dgx-ext", (1,), 32768, 16384, 1),
    ],
)
def test_each_application_by_hand(
    applications: Mapping[str, Application],
    texts: Mapping[str, str],
    app: str,
    type_: str,
    shape: tuple[int, ...],
    batch: int,
    local: int,
    extra: int,
) -> None:
    placement = "".join(map(str, shape))
    work = seconds_by_hand(texts, app, type_, placement, batch, local, extra) * SLOWDOWN.get(app, 1.2)
    expected = 60 + RESTART[app] + work
    assert run_alone(applications[app], batch, type_, shape).completed == pytest.approx(expected, rel=0.02)


def test_fcfs_by_hand(applications: Mapping[str, Application], texts: Mapping[str, str]) -> None:
    # One type, so that it is clear where each job runs; sizes and batches as in the traces, on tables' own rows.
    jobs = [
        TraceJob("a", 10.0, 4, "cifar10", 1024),
        TraceJob("b", 20.0, 8, "deepspeech2", 320),
        TraceJob("c", 30.0, 8, "yolov3", 128),
        TraceJob("d", 70.0, 4, "cifar10", 1024),
        TraceJob("e", 80.0, 8, "deepspeech2", 320),
    ]
    outcome = simulate(
        parse_cluster("rtx:2x8"), Workload("w", tuple(jobs)), applications, make_policy("fcfs"), Options(resize=False)
    )
    cifar10 = RESTART["cifar10"] + 1.8 * seconds_by_hand(texts, "cifar10", "rtx", "4", 1024, 256, 0)
    speech = RESTART["deepspeech2"] + 1.2 * seconds_by_hand(texts, "deepspeech2", "rtx", "8", 320, 40, 0)
    yolo = RESTART["yolov3"] + 1.2 * seconds_by_hand(texts, "yolov3", "rtx", "8", 128, 8, 1)

    def decision_after(time: float) -> float:
        return math.ceil(time / 60) * 60.0

    # a and b start at 60, on a node each. c needs all of a's node, and starts when a is done.
    ends = {"a": 60 + cifar10, "b": 60 + speech}
    ends["c"] = decision_after(ends["a"]) + yolo
    # d has waited behind c, and starts on b's node when b is done; e needs all of that node, and waits for d.
    ends["d"] = decision_after(ends["b"]) + cifar10
    ends["e"] = decision_after(ends["d"]) + speech
    for job in outcome.jobs:
        assert job.completed == pytest.approx(ends[job.view.name], rel=0.02)


@pytest.mark.parametrize("number", [0, 1])
def test_fcfs_with_the_traces_sizes(applications: Mapping[str, Application], number: int) -> None:
    """FCFS on a whole workload, calculated a second time by a loop of a few lines over run times alone."""
    workload = read_workloads(published_traces(), applications)[number]
    cluster = parse_cluster("aws:16x4")
    outcome = simulate(cluster, workload, applications, make_policy("fcfs"), Options(resize=False))
    free_at = [0.0] * cluster.slots
    earliest = 60.0
    for job in sorted(outcome.jobs, key=lambda job: (job.view.submitted, job.view.name)):
        view = job.view
        free_at.sort()
        start = max(earliest, math.ceil(max(view.submitted, free_at[view.slots - 1]) / 60) * 60.0)
        earliest = start
        assert view.account.started == start, f"{view.name}"
        assert view.allocation is not None and job.completed is not None
        application = applications[view.application]
        training = Training(
            application, ReportingAgent(application, next(j.batch for j in workload.jobs if j.name == view.name))
        )
        training.placed(view.allocation)
        left = training.left(view.allocation)
        assert left is not None
        end = start + application.constants.restart + left
        assert job.completed == pytest.approx(end)
        free_at[: view.slots] = [end] * view.slots
