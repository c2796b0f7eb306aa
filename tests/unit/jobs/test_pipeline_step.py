"""A job as one step of a pipeline."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import pytest
from fake_jobs import FakeJobs

from farandole.control.jobs import handle, pipeline_step
from farandole.control.jobs.errors import Refused, Unreachable
from farandole.control.jobs.handle import JobFailed
from farandole.control.jobs.pipeline_step import metrics_of, run_job
from farandole.control.jobs.spec import JobSpec
from farandole.control.jobs.status import JobState, JobStatus

JOB = {"command": ["python", "train.py"], "workers": "2:8", "name": "digits"}


class Place(FakeJobs):
    """A fake place that refuses a name that is taken, as all real places do."""

    def __init__(self) -> None:
        super().__init__()
        self.never_ends = threading.Event()
        self.silent = False

    def submit(self, spec: JobSpec) -> str:
        if spec.name in self.told:
            raise Refused(f"there is a job {spec.name}")
        return super().submit(spec)

    def logs(self, name: str, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        if self.silent:
            self.never_ends.wait(60)
        return super().logs(name, follow, rank)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    place = Place()

    def connect(name: str | None, environment: Mapping[str, str]) -> tuple[str, Place]:
        return name or "fake", place

    monkeypatch.setattr(pipeline_step, "connect", connect)
    yield place
    place.never_ends.set()


def test_run_job_returns_metrics_of_the_job(place: Place) -> None:
    said: list[str] = []
    place.lines = ["[0]<stdout>:epoch 1\n", '[0]<stdout>:metrics: {"accuracy": 0.98, "steps": 690}\n']
    assert run_job(JOB, say=said.append) == {"accuracy": 0.98, "steps": 690}
    assert place.specs["digits"].command == ("python", "train.py")
    assert "[0]<stdout>:epoch 1" in said
    assert said[-1] == 'job digits has succeeded; metrics: {"accuracy": 0.98, "steps": 690}'


def test_whole_floats_of_a_pipeline_become_integers(place: Place) -> None:
    run_job({**JOB, "workers": {"min": 2.0, "max": 8.0, "replicas": 4.0}, "grace": 1.5}, say=lambda line: None)
    spec = place.specs["digits"]
    assert (spec.workers.min, spec.workers.max, spec.grace) == (2, 8, 1.5)
    assert isinstance(spec.workers.replicas, int)


def test_failed_job_raises_job_failed(place: Place) -> None:
    place.exit_code = 3
    with pytest.raises(JobFailed, match="digits has failed: ended with code 3"):
        run_job(JOB, say=lambda line: None)


def test_last_lines_of_failed_job_are_shown(place: Place) -> None:
    said: list[str] = []
    shown = threading.Event()

    def logs(name: str, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        place.change(name, state=JobState.FAILED, exit_code=1, reason="ended with code 1")
        shown.wait(0.2)  # The lines arrive after the job is over.
        yield "[0]<stderr>:ValueError: boom\n"

    place.logs = logs  # type: ignore[method-assign]
    with pytest.raises(JobFailed):
        run_job(JOB, say=said.append)
    assert said[-1] == "[0]<stderr>:ValueError: boom"


def test_result_outlasts_temporary_outage_of_the_place(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    now, away = 0.0, 100.0

    def status(name: str) -> JobStatus:
        if now < away:
            raise Unreachable("the API server cannot answer: busy", "try again")
        return JobStatus(name, JobState.SUCCEEDED)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(place, "status", status)
    monkeypatch.setattr(handle.time, "sleep", sleep)
    monkeypatch.setattr(handle.time, "monotonic", lambda: now)
    job = handle.JobHandle(place.submit(JobSpec(("true",), pipeline_step.from_dict(JOB).workers, "digits")), "", place)

    assert job.result().state is JobState.SUCCEEDED
    now, away = 0.0, 1e9
    with pytest.raises(Unreachable, match="busy"):
        job.result()
    assert 100 < now < 200
    now = 0.0
    with pytest.raises(TimeoutError, match="digits is not over: it is not known: the API server cannot answer: busy"):
        job.result(timeout=5.0)
    assert now < 7


def test_cancelled_job_is_reported_as_cancelled() -> None:
    assert (
        str(JobFailed(JobStatus("digits", JobState.CANCELLED, reason="by ann"))) == "job digits was cancelled: by ann"
    )
    assert [state.in_words for state in (JobState.SUCCEEDED, JobState.RUNNING)] == ["has succeeded", "is running"]


def test_restarted_step_waits_for_the_existing_job(place: Place) -> None:
    said: list[str] = []
    place.submit(JobSpec(("python", "train.py"), pipeline_step.from_dict(JOB).workers, "digits"))
    run_job(JOB, say=said.append)
    assert said[0] == "job digits exists already: waiting for it"
    assert len(place.specs) == 1


def test_finished_job_of_an_earlier_run_is_not_reused(place: Place) -> None:
    run_job(JOB, say=lambda line: None)
    with pytest.raises(Refused, match="there is a job digits"):
        run_job(JOB, say=lambda line: None)


def test_job_is_cancelled_after_timeout(place: Place) -> None:
    place.silent = True
    with pytest.raises(TimeoutError, match="digits is not over"):
        run_job(JOB, timeout=0.01, say=lambda line: None)
    assert place.status("digits").state is JobState.CANCELLED


def test_interrupted_step_cancels_its_job_and_keeps_its_own_error(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(name: str) -> JobStatus:
        raise SystemExit(143)

    place.silent = True
    cancelled = []
    monkeypatch.setattr(place, "status", ended)
    monkeypatch.setattr(place, "cancel", cancelled.append)
    with pytest.raises(SystemExit):
        run_job(JOB, say=lambda line: None)
    assert cancelled == ["digits"]

    def unreachable(name: str) -> None:
        raise Unreachable("nobody answers")

    monkeypatch.setattr(place, "cancel", unreachable)
    with pytest.raises(SystemExit):
        run_job({**JOB, "name": "other"}, say=lambda line: None)


@pytest.mark.parametrize(
    "line", ["metrics: {", "metrics: [1]", "metrics: {} more", "metric: {}", 'metrics: {"a": NaN, "b": true, "c": "1"}']
)
def test_lines_without_metrics_are_ignored(line: str) -> None:
    assert metrics_of([line]) == {}


def test_later_metrics_override_earlier_ones() -> None:
    lines = ['metrics: {"a": 1, "b": 2}', '12:00 [1]<stdout>:metrics: {"a": 3}\n']
    assert metrics_of(lines) == {"a": 3, "b": 2}
