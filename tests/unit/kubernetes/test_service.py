"""Jobs of any place as TrainingJobs, and TrainingJobs as jobs of any place."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from farandole.jobs.errors import BadSpec, NotAllowed
from farandole.jobs.spec import from_dict
from farandole.jobs.status import JobState
from farandole.kubernetes.reading import status_of
from farandole.kubernetes.service import KubernetesJobs, object_of
from farandole.kubernetes.training_job.job_spec import read


def described(**more: object) -> dict[str, object]:
    return {
        "command": ["python", "train.py"],
        "workers": {"min": 2, "max": 8, "replicas": 4},
        "image": "me/train",
        **more,
    }


def test_a_job_becomes_a_training_job_that_the_operator_reads() -> None:
    own = {"kubernetes": {"slotsPerPod": 2, "tolerateSpot": True}}
    body, shipped = object_of(from_dict(described(name="resnet", priority=3, options=own)))

    assert shipped is None
    assert body["metadata"]["name"] == "resnet"
    spec, faults = read({**body, "metadata": {"name": "resnet", "namespace": "team"}})
    assert faults == []
    assert spec is not None
    assert (spec.job.workers.max, spec.job.priority, spec.slots, spec.tolerate_spot, spec.pods) == (8, 3, 2, True, 2)


def test_small_code_travels_in_a_configmap(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "train.py").write_text("import lib.model")
    (tmp_path / "lib" / "model.py").write_text("")

    body, shipped = object_of(from_dict(described(options={"kubernetes": {"ship": str(tmp_path)}})))

    assert shipped is not None
    paths = {item["path"] for item in body["spec"]["ship"]["items"]}
    assert paths == {"train.py", "lib/model.py"}
    assert set(shipped["binaryData"]) == {item["key"] for item in body["spec"]["ship"]["items"]}


def test_what_kubernetes_cannot_take_is_told_with_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (1 << 20))
    with pytest.raises(BadSpec, match="image: Kubernetes needs one"):
        object_of(from_dict({**described(), "image": ""}))
    with pytest.raises(BadSpec, match=r"options.kubernetes.slots: there is no such key"):
        object_of(from_dict(described(options={"kubernetes": {"slots": 2}})))
    with pytest.raises(BadSpec, match="put it into the image"):
        object_of(from_dict(described(options={"kubernetes": {"ship": str(tmp_path)}})))


def test_a_training_job_is_read_as_any_job_is() -> None:
    body, _ = object_of(from_dict(described(name="resnet")))
    ranks = [{"worker": 0, "pod": "resnet-worker-0", "state": "ready"}]
    status = {"state": "Running", "reason": "1 workers train.", "workers": 1, "progress": {"size": 1, "ranks": ranks}}

    found = status_of({**body, "status": status})

    assert (found.state, found.workers, found.wanted, found.hosts) == (JobState.RUNNING, 1, 4, ("resnet-worker-0",))
    assert "no operator has seen it" in status_of(body).reason
    assert status_of({**body, "status": {"state": "Nonsense"}}).state is JobState.WAITING


def test_a_job_whose_code_cannot_be_sent_is_not_left_suspended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    asked: list[tuple[str, str]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append((request.method, request.url.path.rpartition("/")[2]))
        if request.url.path.endswith("/configmaps"):
            return httpx2.Response(403, json={"message": "exceeded quota: configmaps"})
        metadata = {"name": "resnet", "namespace": "team", "uid": "u-1"}
        return httpx2.Response(201, json={"metadata": metadata, "spec": {}})

    service = KubernetesJobs(httpx2.Client(transport=httpx2.MockTransport(answer), base_url="http://fake"), "team")

    with pytest.raises(NotAllowed, match="exceeded quota"):
        service.submit(from_dict(described(name="resnet", options={"kubernetes": {"ship": str(tmp_path)}})))
    assert asked == [("POST", "trainingjobs"), ("POST", "configmaps"), ("DELETE", "resnet")]
