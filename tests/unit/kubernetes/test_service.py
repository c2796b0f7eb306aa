"""Jobs of any place as TrainingJobs, and TrainingJobs as jobs of any place."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import yaml
from lightkube.core.exceptions import ConfigError

from farandole.control.jobs.errors import BadSpec, NotAllowed, Refused, UnknownJob, Unreachable
from farandole.control.jobs.spec import from_dict
from farandole.control.jobs.status import JobState, to_dict
from farandole.control.jobs.status import from_dict as from_plain
from farandole.control.kubernetes import code, service
from farandole.control.kubernetes.api.blocking import BlockingApi
from farandole.control.kubernetes.kinds import TRAINING_JOB
from farandole.control.kubernetes.model import Options
from farandole.control.kubernetes.reading import status_of
from farandole.control.kubernetes.service import KubernetesJobs, object_of
from farandole.control.kubernetes.training_job import pods
from farandole.control.kubernetes.training_job.job_spec import read


def jobs_of(answer: Callable[[httpx2.Request], httpx2.Response]) -> KubernetesJobs:
    """Return the jobs of a namespace whose API server answers so."""
    client = httpx2.Client(transport=httpx2.MockTransport(answer), base_url="http://server")
    return KubernetesJobs(BlockingApi(client), "team")


def described(**more: object) -> dict[str, object]:
    return {
        "command": ["python", "train.py"],
        "workers": {"min": 2, "max": 8, "replicas": 4},
        "image": "me/train",
        **more,
    }


def test_job_becomes_training_job_that_operator_reads() -> None:
    own = {"kubernetes": {"slotsPerPod": 2, "tolerateSpot": True}}
    body, shipped = object_of(from_dict(described(name="resnet", priority=3, options=own)))

    assert shipped is None
    assert body["metadata"]["name"] == "resnet"
    spec, faults = read({**body, "metadata": {"name": "resnet", "namespace": "team"}})
    assert faults == []
    assert spec is not None
    assert (spec.job.workers.max, spec.job.priority, spec.slots, spec.tolerate_spot, spec.pods) == (8, 3, 2, True, 2)


@pytest.mark.parametrize("found", [ConfigError("no file"), None])
def test_job_can_be_previewed_without_a_cluster(monkeypatch: pytest.MonkeyPatch, found: Exception | None) -> None:
    def config() -> None:
        if found is not None:
            raise found

    monkeypatch.setattr(service, "default_config", config)
    jobs = service.connect({})
    spec = from_dict(described(name="resnet"))
    assert yaml.safe_load(jobs.preview(spec))["metadata"] == {"name": "resnet"}
    for ask in (lambda: jobs.submit(spec), jobs.jobs, lambda: list(jobs.logs("resnet")), lambda: jobs.cancel("resnet")):
        with pytest.raises(Unreachable, match="no Kubernetes cluster is configured") as caught:
            ask()
        assert "KUBECONFIG" in caught.value.hint


def test_preview_is_training_job_and_code_as_yaml(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    spec = from_dict(described(name="resnet", options={"kubernetes": {"ship": str(tmp_path)}}))
    jobs = jobs_of(unasked)
    job, code = yaml.safe_load_all(jobs.preview(spec))
    made, _ = object_of(spec)
    assert job == {**made, "spec": {**made["spec"], "command": ["python", "train.py"]}}
    assert code["metadata"] == {"name": job["spec"]["ship"]["configMap"]}
    assert base64.b64decode(code["binaryData"]["file-0"]) == b"print(1)\n"


def unasked(request: httpx2.Request) -> httpx2.Response:
    raise AssertionError(f"{request.method} {request.url}: nothing is to be asked")


def test_small_code_is_sent_in_configmap(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "train.py").write_text("import lib.model")
    (tmp_path / "lib" / "model.py").write_text("")

    body, shipped = object_of(from_dict(described(options={"kubernetes": {"ship": str(tmp_path)}})))

    assert shipped is not None
    paths = {item["path"] for item in body["spec"]["ship"]["items"]}
    assert paths == {"train.py", "lib/model.py"}
    assert set(shipped["binaryData"]) == {item["key"] for item in body["spec"]["ship"]["items"]}


@pytest.mark.parametrize("nonsense", [5, "text", [3], {"a": 1}, None, True, [None], {"rank": 0}])
def test_malformed_status_is_shown_without_error(nonsense: object) -> None:
    progress = dict.fromkeys(("ranks", "size", "stepsPerSecond"), nonsense)
    keys = ("state", "reason", "startTime", "history", "exitCode", "workers")
    for status in (nonsense, {"progress": nonsense}, {**dict.fromkeys(keys, nonsense), "progress": progress}):
        shown = to_dict(status_of({"metadata": {"name": "a"}, "spec": {"command": ["x"]}, "status": status}))
        assert from_plain(shown).steps_per_second in (None, 5)


def test_links_and_programs_are_sent(tmp_path: Path) -> None:
    (tmp_path / "train-v2.py").write_text("v2")
    (tmp_path / "train.py").symlink_to("train-v2.py")
    (tmp_path / "data").symlink_to("/usr")
    (tmp_path / "key").symlink_to("/etc/hostname")
    (tmp_path / "run.sh").write_text("#!/bin/sh")
    (tmp_path / "run.sh").chmod(0o755)

    body, shipped = object_of(from_dict(described(name="a", options={"kubernetes": {"ship": str(tmp_path)}})))

    assert shipped is not None
    keys = {item["path"]: item["key"] for item in body["spec"]["ship"]["items"]}
    assert set(keys) == {"train.py", "train-v2.py", "run.sh"}
    assert shipped["binaryData"][keys["train.py"]] == shipped["binaryData"][keys["train-v2.py"]]
    spec, _ = read({**body, "metadata": {"name": "a", "namespace": "team", "uid": "u"}})
    assert spec is not None
    pod = pods.worker({"metadata": {"name": "a", "namespace": "team", "uid": "u"}}, spec, Options(), 0)
    (volume,) = [each["configMap"] for each in pod["spec"]["volumes"] if each["name"] == "farandole-code"]
    assert volume["defaultMode"] & 0o111 == 0o111


def test_unreadable_code_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    stock = code.build_manifest

    def gone(folder: str) -> object:
        found = stock(folder)
        (tmp_path / "train.py").unlink()
        return found

    monkeypatch.setattr(code, "build_manifest", gone)
    with pytest.raises(BadSpec, match=r"options\.kubernetes\.ship: train\.py cannot be read: No such file"):
        object_of(from_dict(described(options={"kubernetes": {"ship": str(tmp_path)}})))


def test_invalid_job_is_refused_with_next_step(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (1 << 20))
    with pytest.raises(BadSpec, match="image: Kubernetes needs one"):
        object_of(from_dict({**described(), "image": ""}))
    with pytest.raises(BadSpec, match=r"options.kubernetes.slots: unknown key"):
        object_of(from_dict(described(options={"kubernetes": {"slots": 2}})))
    with pytest.raises(BadSpec, match="put it into the image"):
        object_of(from_dict(described(options={"kubernetes": {"ship": str(tmp_path)}})))


def test_training_job_has_a_common_status() -> None:
    body, _ = object_of(from_dict(described(name="resnet")))
    ranks = [{"worker": 0, "pod": "resnet-worker-0", "state": "ready"}]
    status = {"state": "Running", "reason": "1 workers train.", "workers": 1, "progress": {"size": 1, "ranks": ranks}}

    found = status_of({**body, "status": status})

    assert (found.state, found.workers, found.wanted, found.hosts) == (JobState.RUNNING, 1, 4, ("resnet-worker-0",))
    assert "no operator has seen it" in status_of(body).reason
    assert status_of({**body, "status": {"state": "Nonsense"}}).state is JobState.WAITING


def test_job_whose_code_cannot_be_sent_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    asked: list[tuple[str, str]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append((request.method, request.url.path.rpartition("/")[2]))
        if request.url.path.endswith("/configmaps"):
            return httpx2.Response(403, json={"message": "exceeded quota: configmaps"})
        metadata = {"name": "resnet", "namespace": "team", "uid": "u-1"}
        return httpx2.Response(201, json={"metadata": metadata, "spec": {}})

    service = KubernetesJobs(
        BlockingApi(httpx2.Client(transport=httpx2.MockTransport(answer), base_url="http://fake")), "team"
    )

    with pytest.raises(NotAllowed, match="exceeded quota"):
        service.submit(from_dict(described(name="resnet", options={"kubernetes": {"ship": str(tmp_path)}})))
    assert asked == [("POST", "trainingjobs"), ("POST", "configmaps"), ("DELETE", "resnet")]


def test_unknown_job_is_an_error_with_existing_jobs() -> None:
    jobs: list[dict[str, object]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/trainingjobs"):
            return httpx2.Response(200, json={"items": jobs})
        return httpx2.Response(404, json={"message": "not found"})

    service = KubernetesJobs(
        BlockingApi(httpx2.Client(transport=httpx2.MockTransport(answer), base_url="http://fake")), "team"
    )

    with pytest.raises(UnknownJob, match="there is no job a in namespace team") as raised:
        service.status("a")
    assert raised.value.hint == "it has no jobs; FARANDOLE_NAMESPACE names another namespace"
    jobs.append({"metadata": {"name": "b"}, "spec": {"command": ["x"]}})
    with pytest.raises(UnknownJob) as raised:
        service.status("a")
    assert raised.value.hint == "its jobs are: b"


class Breaks(httpx2.SyncByteStream):
    """The beginning of an answer, after which the connection breaks, or nothing more comes."""

    def __init__(self, begin: bytes, error: httpx2.HTTPError | None = None) -> None:
        self._begin = begin
        self._error = error or httpx2.ReadError("reset")

    def __iter__(self) -> Iterator[bytes]:
        yield self._begin
        raise self._error


@pytest.mark.timeout(10)
@pytest.mark.parametrize("breaks", [1, 3, 1000, "the pod goes"])
def test_log_continues_after_broken_connection(breaks: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = b"".join(b"2026-01-01T00:00:00.00000000%dZ epoch %d\n" % (each, each) for each in (1, 2, 3))
    asked = 0

    def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal asked
        if not request.url.path.endswith("/log"):
            metadata = {"name": "job-launcher-0", "uid": "p", "labels": {}}
            pods = [{"metadata": metadata, "status": {"phase": "Running"}}]
            pods = [] if asked and breaks == "the pod goes" else pods
            job = {"metadata": {"name": "job"}, "spec": {}, "status": {"state": "Succeeded"}}
            return httpx2.Response(200, json={**job, "items": pods})
        asked += 1
        return httpx2.Response(
            200,
            stream=Breaks(log[: len(log) // 3])
            if isinstance(breaks, str) or asked <= breaks
            else httpx2.ByteStream(log),
        )

    monkeypatch.setattr("farandole.control.kubernetes.service._POLL_SECONDS", 0.0)
    service = KubernetesJobs(
        BlockingApi(httpx2.Client(transport=httpx2.MockTransport(answer), base_url="http://fake")), "team"
    )

    lines = list(service.logs("job", follow=True))

    assert lines == (["epoch 1\n", "epoch 2\n", "epoch 3\n"] if breaks in (1, 3) else ["epoch 1\n"])
    assert asked <= 10


def test_text_that_is_not_utf_8_is_refused() -> None:
    """The API server takes JSON, which has no other bytes; it would put another character there."""
    with pytest.raises(BadSpec, match=r"caf\\xe9: Kubernetes takes only text in UTF-8"):
        object_of(from_dict(described(command=["cat", "caf\udce9"])))


class FailingServer:
    """An API server that takes what is made, and whose answers are lost.

    Args:
        lost: how many answers to requests to make something are lost, one after the other.
        takes: whether it takes what these requests make.
    """

    def __init__(self, lost: int, takes: bool = True) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.asked = 0
        self._lost, self._takes = lost, takes

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if request.method == "GET":
            return httpx2.Response(200, json=self.objects[path])
        self.asked += 1
        body = json.loads(request.content)
        key, is_lost = f"{path}/{body['metadata']['name']}", self.asked <= self._lost
        if key in self.objects and not is_lost:
            return httpx2.Response(409, json={"message": f"{key} already exists"})
        if key not in self.objects and (self._takes or not is_lost):
            self.objects[key] = {**body, "metadata": {**body["metadata"], "uid": "u"}}
        if is_lost:
            raise httpx2.ReadTimeout("timed out")
        return httpx2.Response(201, json=self.objects[key])


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let time pass at once, and return the seconds of each rest."""
    rests: list[float] = []
    clock = SimpleNamespace(sleep=rests.append, monotonic=lambda: sum(rests))
    monkeypatch.setattr(service, "time", clock)
    return rests


def submit_to(server: FailingServer, name: str = "resnet") -> str:
    return jobs_of(server.answer).submit(from_dict(described(name=name)))


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_job_is_created_once_despite_lost_answers(lost: int, takes: bool, rests: list[float]) -> None:
    server = FailingServer(lost, takes)
    assert submit_to(server) == "resnet" and len(server.objects) == 1
    with pytest.raises(Refused, match="already exists"):
        submit_to(server)


def test_namesake_is_not_mistaken_for_job_with_lost_answer(rests: list[float]) -> None:
    server = FailingServer(1, takes=False)
    path = f"/apis/{TRAINING_JOB.api_version}/namespaces/team/{TRAINING_JOB.plural}/resnet"
    server.objects[path] = {"metadata": {"name": "resnet"}}
    with pytest.raises(Refused, match="already exists"):
        submit_to(server)


def test_unanswered_submission_times_out(rests: list[float]) -> None:
    with pytest.raises(Unreachable, match="resnet may or may not have been created"):
        submit_to(FailingServer(1000, takes=False))
    assert 10.0 <= sum(rests) <= 11.0

    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("connection refused")

    before = len(rests)
    jobs = KubernetesJobs(
        BlockingApi(httpx2.Client(transport=httpx2.MockTransport(refuse), base_url="http://server")), "team"
    )
    with pytest.raises(Unreachable, match="connection refused"):
        jobs.submit(from_dict(described(name="resnet")))
    assert len(rests) == before, "it was not even asked"


@pytest.mark.parametrize("verb", ["cancel", "suspend", "resume", "scale"])
@pytest.mark.parametrize(("lost", "is_told"), [(0, False), (2, False), (1000, True)])
def test_change_is_repeated_after_lost_answers(verb: str, lost: int, is_told: bool, rests: list[float]) -> None:
    """A user who repeated `cancel` would end the job at once, without its grace period."""
    changes: list[dict[str, Any]] = []
    job = {
        "metadata": {"name": "resnet", "uid": "u"},
        "spec": {"command": ["true"], "workers": {"min": 1, "max": 4, "replicas": 2}},
        "status": {"state": "Running"},
    }

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return httpx2.Response(200, json=job)
        assert request.method == "PATCH"
        changes.append(json.loads(request.content)["spec"])
        if len(changes) <= lost:
            raise httpx2.ReadTimeout("timed out")
        return httpx2.Response(200, json=job)

    def change() -> None:
        getattr(jobs_of(answer), verb)("resnet", *([3] if verb == "scale" else []))

    if is_told:
        with pytest.raises(Unreachable, match="job resnet may or may not have been changed") as told:
            change()
        assert "farandole status resnet --on kubernetes" in told.value.hint
        assert 10.0 <= sum(rests) <= 11.0
    else:
        change()
        assert len(changes) == lost + 1
    assert all(each == changes[0] for each in changes)


STAMP = b"2026-01-01T00:00:00.00000000%dZ "


def following(
    answer_log: Callable[[int, httpx2.Request], httpx2.Response], vanishes: bool = False, **status: object
) -> KubernetesJobs:
    """Return the service of a job that trains, with one launcher pod.

    Args:
        answer_log: returns the answer to a request for the log; it is told how many there were.
        vanishes: whether there is no API server any more after the first of these.
    """
    asked = 0

    def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal asked
        if request.url.path.endswith("/log"):
            asked += 1
            return answer_log(asked, request)
        metadata = {"name": "job-launcher-0", "uid": "p", "labels": {}}
        job = {"metadata": {"name": "job"}, "spec": {}, "status": {"state": "Running", **status}}
        if asked and vanishes:
            raise httpx2.ConnectTimeout("timed out")
        if asked > 3:
            job["status"]["state"] = "Succeeded"
        return httpx2.Response(200, json={**job, "items": [{"metadata": metadata, "status": {"phase": "Running"}}]})

    return KubernetesJobs(
        BlockingApi(httpx2.Client(transport=httpx2.MockTransport(answer), base_url="http://fake")), "team"
    )


def silence(begin: bytes = b"") -> httpx2.Response:
    return httpx2.Response(200, stream=Breaks(begin, httpx2.ReadTimeout("timed out")))


@pytest.mark.timeout(10)
def test_followed_log_ends_when_api_server_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farandole.control.kubernetes.service._POLL_SECONDS", 0.0)
    service = following(lambda asked, request: silence(STAMP % 1 + b"epoch 1\n"), vanishes=True)

    lines = service.logs("job", follow=True)

    assert next(lines) == "epoch 1\n"
    with pytest.raises(Unreachable, match="the API server does not answer"):
        next(lines)


@pytest.mark.timeout(10)
def test_idle_log_is_followed_from_its_last_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("farandole.control.kubernetes.service._POLL_SECONDS", 0.0)
    since: list[str] = []

    def answer(asked: int, request: httpx2.Request) -> httpx2.Response:
        since.append(request.url.params.get("sinceTime", ""))
        if asked == 1:
            return silence(STAMP % 1 + b"epoch 1\n")
        if asked < 20:
            return silence(STAMP % 1 + b"epoch 1\n")  # The server knows whole seconds only.
        return httpx2.Response(200, content=STAMP % 1 + b"epoch 1\n" + STAMP % 2 + b"epoch 2\n")

    assert list(following(answer).logs("job", follow=True)) == ["epoch 1\n", "epoch 2\n"]
    assert since == ["", *["2026-01-01T00:00:00.000000001Z"] * 19]


@pytest.mark.timeout(10)
def test_lines_of_one_time_stamp_are_all_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes give lines that come together the same time stamp; the connection breaks between them."""
    monkeypatch.setattr("farandole.control.kubernetes.service._POLL_SECONDS", 0.0)
    whole = [STAMP % 1 + b"a\n", STAMP % 2 + b"b\n", STAMP % 2 + b"c\n", STAMP % 2 + b"d\n", STAMP % 3 + b"e\n"]

    def answer(asked: int, request: httpx2.Request) -> httpx2.Response:
        return silence(b"".join(whole[: asked + 1])) if asked < 4 else httpx2.Response(200, content=b"".join(whole))

    assert list(following(answer).logs("job", follow=True)) == ["a\n", "b\n", "c\n", "d\n", "e\n"]


def test_lines_after_clock_was_set_back_are_shown() -> None:
    log = STAMP % 5 + b"before\n" + STAMP % 1 + b"after\n"

    assert list(following(lambda asked, request: httpx2.Response(200, content=log)).logs("job")) == [
        "before\n",
        "after\n",
    ]


def test_log_has_last_lines_of_pods_that_failed_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("farandole.control.kubernetes.service._POLL_SECONDS", 0.0)
    failures = [
        {"pod": "job-worker-1", "what": "Error, exit code 1", "lines": "Traceback\nNo module named 'farandole'"},
        {"pod": "job-worker-2", "what": "Error, exit code 137"},
        7,
    ]
    service = following(lambda asked, request: httpx2.Response(200, content=STAMP % 1 + b"hello\n"), failures=failures)

    assert list(service.logs("job")) == [
        "farandole: job-worker-1 failed (Error, exit code 1); its last lines:\n",
        "[job-worker-1] Traceback\n",
        "[job-worker-1] No module named 'farandole'\n",
        "hello\n",
    ]
