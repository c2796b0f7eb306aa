"""Jobs on Ray: the request as text, and the verbs on a stand-in for Ray's server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_ray_jobs import FakeRayJobs

from farandole.control.cli.main import main
from farandole.control.jobs.errors import NotAllowed, Refused, UnknownJob, Unreachable
from farandole.control.jobs.spec import from_dict
from farandole.control.jobs.status import JobState
from farandole.control.ray_jobs import service
from farandole.control.ray_jobs.request import resources_of, status_of
from farandole.control.ray_jobs.service import RayJobs, connect

SPEC = {
    "name": "resnet-2",
    "command": ["python", "train.py", "--name", "a b"],
    "workers": "2:4",
    "checkpoint": "/shared/resnet 2",
    "environment": {"A": "1"},
    "resources": {"nvidia.com/gpu": 1},
    "workingDirectory": "/home/me/code",
    "options": {"ray": {"pip": ["einops"], "env_vars": {"B": "2"}}},
}
REQUEST = """\
{
  "entrypoint": "python -m farandole.ray.submitted",
  "submission_id": "resnet-2",
  "metadata": {
    "farandole": "4",
    "command": "[\\"python\\", \\"train.py\\", \\"--name\\", \\"a b\\"]"
  },
  "runtime_env": {
    "pip": [
      "einops"
    ],
    "env_vars": {
      "B": "2",
      "FARANDOLE_SUBMITTED": "{\\"command\\":[\\"python\\",\\"train.py\\",\\"--name\\",\\"a b\\"],\
\\"workers\\":{\\"min\\":2,\\"max\\":4,\\"replicas\\":4},\\"name\\":\\"resnet-2\\",\\"environment\\":{\\"A\\":\\"1\\"},\
\\"resources\\":{\\"nvidia.com/gpu\\":\\"1\\"},\\"checkpoint\\":\\"/shared/resnet 2\\",\
\\"workingDirectory\\":\\"/home/me/code\\",\
\\"options\\":{\\"ray\\":{\\"pip\\":[\\"einops\\"],\\"env_vars\\":{\\"B\\":\\"2\\"}}}}",
      "RAY_JOB_STOP_WAIT_TIME_S": "40"
    }
  }
}
"""


@pytest.fixture
def ray() -> Iterator[FakeRayJobs]:
    fake = FakeRayJobs()
    yield fake
    fake.close()


@pytest.fixture
def jobs(ray: FakeRayJobs) -> RayJobs:
    return connect({"RAY_API_SERVER_ADDRESS": ray.address})


def spec(**changes: object) -> object:
    return from_dict({"name": "a", "command": ["true"], "workers": 2, **changes})


def test_request_has_expected_text(jobs: RayJobs) -> None:
    assert jobs.preview(from_dict(SPEC)) == REQUEST


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"priority": 5}, "priority: Ray's jobs do not support it"),
        ({"queue": "gpu"}, "queue: Ray's jobs do not support it"),
        ({"image": "me/train"}, "image: Ray's jobs do not support it"),
        ({"retries": 1}, "retries: Ray's jobs do not support it"),
        ({"suspension": "requeue"}, "suspension: Ray's jobs do not support it"),
        ({"resources": {"memory": "8Gi"}}, "resource memory: it cannot be requested from Ray here"),
        ({"resources": {"cpu": "many"}}, "resource cpu: 'many' is not a valid amount"),
        ({"options": {"ray": ["--pip"]}}, "options.ray: expected keys of a runtime environment"),
    ],
)
def test_what_ray_does_not_have_is_refused_before_anything_is_sent(changes: dict[str, object], said: str) -> None:
    with pytest.raises(Refused, match=said):
        RayJobs("http://127.0.0.1:1").submit(spec(**changes))  # type: ignore[arg-type]


def test_resources_of_workers() -> None:
    assert resources_of(from_dict({"command": ["a"], "workers": 1})) == (1.0, 0.0)
    resources = {"cpu": "500m", "nvidia.com/gpu": "2"}
    assert resources_of(from_dict({"command": ["a"], "workers": 1, "resources": resources})) == (0.5, 2.0)


def test_job_from_submission_to_success(jobs: RayJobs, ray: FakeRayJobs) -> None:
    assert list(jobs.jobs()) == []
    assert jobs.submit(spec()) == "a"  # type: ignore[arg-type]
    status = jobs.status("a")
    assert (status.state, status.place, status.command, status.wanted) == (JobState.STARTING, "ray", ("true",), 2)
    ray.jobs["a"]["status"] = "RUNNING"
    assert jobs.status("a").state is JobState.RUNNING
    with pytest.raises(Refused, match="job a already exists: it is running"):
        jobs.submit(spec())  # type: ignore[arg-type]
    ray.jobs["a"] |= {"status": "SUCCEEDED", "driver_exit_code": 0, "end_time": 5000}
    status = jobs.status("a")
    assert (status.state, status.exit_code, status.finished) == (JobState.SUCCEEDED, 0, 5.0)
    with pytest.raises(Refused, match="job a is over: it has succeeded"):
        jobs.cancel("a")
    jobs.submit(spec())  # type: ignore[arg-type]
    assert jobs.status("a").state is JobState.STARTING, "its name is free again"
    jobs.cancel("a")
    assert jobs.status("a").state is JobState.CANCELLED
    ray.jobs["other"] = {"submission_id": "other", "status": "RUNNING", "metadata": {}}
    ray.jobs["driver"] = {"submission_id": None, "status": "RUNNING"}
    assert [each.name for each in jobs.jobs()] == ["a"]
    with pytest.raises(UnknownJob, match="job other of Ray was not submitted by farandole"):
        jobs.status("other")


def test_failure_has_rays_reason() -> None:
    said = {"status": "FAILED", "message": "Job entrypoint command failed\nlast logs", "driver_exit_code": 3}
    status = status_of({"submission_id": "a", "metadata": {"farandole": "2"}, **said})
    assert status is not None and (status.exit_code, status.reason) == (3, "Ray says Job entrypoint command failed")


def test_submission_whose_answer_is_lost_does_not_run_twice(jobs: RayJobs, ray: FakeRayJobs) -> None:
    ray.loses = True
    with pytest.raises(Unreachable, match="it is not known whether Ray has accepted job a"):
        jobs.submit(spec())  # type: ignore[arg-type]
    with pytest.raises(Refused, match="job a already exists"):
        jobs.submit(spec())  # type: ignore[arg-type]


def test_name_is_chosen_if_none_is_given(jobs: RayJobs) -> None:
    names = {jobs.submit(spec(name="")) for _ in range(2)}  # type: ignore[arg-type]
    assert len(names) == 2 and {each.name for each in jobs.jobs()} == names


def test_changes_that_ray_has_no_request_for_are_refused(jobs: RayJobs) -> None:
    jobs.submit(spec())  # type: ignore[arg-type]
    with pytest.raises(Refused, match="job a cannot be changed in size"):
        jobs.scale("a", 3)
    with pytest.raises(Refused, match="job a cannot be suspended"):
        jobs.suspend("a")
    with pytest.raises(Refused, match="job a is not suspended"):
        jobs.resume("a")
    with pytest.raises(UnknownJob, match="there is no job b on the Ray cluster"):
        jobs.scale("b", 3)


def test_log_is_followed_line_by_line_to_the_end(
    jobs: RayJobs, ray: FakeRayJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_POLL_SECONDS", 0.01)
    jobs.submit(spec())  # type: ignore[arg-type]
    ray.logs["a"] = "[0]<stdout>:one\n[1]<stdout>:tw"
    lines = jobs.logs("a", follow=True)
    assert next(lines) == "[0]<stdout>:one\n"
    ended = threading.Timer(0, lambda: ray.jobs["a"].update(status="SUCCEEDED"))
    ray.logs["a"] += "o\n[0]<stdout>:no end of line"
    ended.start()
    assert list(lines) == ["[1]<stdout>:two\n", "[0]<stdout>:no end of line\n"]
    ended.join()
    assert list(jobs.logs("a", rank=1)) == ["[1]<stdout>:two\n"]
    ray.logs["a"] = ""
    assert list(jobs.logs("a")) == []


def test_token_is_found_as_rays_client_finds_it(ray: FakeRayJobs, tmp_path: Path) -> None:
    ray.token = "t"
    (tmp_path / "token").write_text("t\n")
    environment = {"RAY_API_SERVER_ADDRESS": ray.address}
    assert connect({**environment, "RAY_AUTH_TOKEN": "t"}).jobs() == []
    assert connect({**environment, "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}).jobs() == []
    with pytest.raises(NotAllowed, match="Ray does not accept the token"):
        connect({**environment, "RAY_AUTH_TOKEN": "other"}).jobs()


def test_cluster_that_does_not_answer_is_an_error_with_next_step(ray: FakeRayJobs) -> None:
    for environment in ({"RAY_ADDRESS": "http://127.0.0.1:1"}, {"RAY_API_SERVER_ADDRESS": "http://127.0.0.1:1"}):
        with pytest.raises(Unreachable, match=r"at http://127.0.0.1:1: .*set RAY_API_SERVER_ADDRESS"):
            connect(environment).jobs()


def test_verbs_of_the_command_line(
    ray: FakeRayJobs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", ray.address)
    assert main(["submit", "--on", "ray", "--detach", "-np", "2", "--name", "b", "--", "true"]) == 0
    assert capsys.readouterr().out == "b\n"
    assert main(["cancel", "b", "--on", "ray"]) == 0
    assert ray.jobs["b"]["status"] == "STOPPED"
