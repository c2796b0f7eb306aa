"""The parts that all kinds share, and those of the process that need no server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from farandole.control.kubernetes import children, conditions, pod_state, times
from farandole.control.kubernetes.api import errors
from farandole.control.kubernetes.model import Ref
from farandole.control.kubernetes.operator.secrets import ssh_keys
from farandole.control.kubernetes.operator.store import ClusterStore, JobKey
from farandole.control.kubernetes.operator.work_queue import WorkQueue


def test_times_survive_round_trip_and_malformed_input() -> None:
    assert times.to_text(0.9) == "1970-01-01T00:00:00Z"
    assert times.from_text("1970-01-01T00:01:00Z") == 60.0
    assert times.from_text("1970-01-01T00:00:00.500000+00:00") == 0.5
    for nonsense in (None, 3, "", "yesterday", "9999-99-99T00:00:00Z", ["2024"]):
        assert times.from_text(nonsense) is None


def test_condition_that_became_true_is_last() -> None:
    items = conditions.with_condition([], "Created", True, "a", "b", 0)
    items = conditions.with_condition(items, "Running", True, "c", "d", 1)
    items = conditions.with_condition(items, "Running", False, "e", "f", 2)
    assert [item["type"] for item in items] == ["Running", "Created"]
    items = conditions.with_condition(items, "Succeeded", True, "g", "h", 3)
    assert items[-1]["type"] == "Succeeded"
    assert conditions.state(items) == "Succeeded"
    assert conditions.with_condition(items, "Succeeded", True, "g", "h", 99) == items
    again = conditions.with_condition(items, "Succeeded", True, "g", "other", 99)[-1]
    assert (again["lastTransitionTime"], again["lastUpdateTime"]) == ("1970-01-01T00:00:03Z", "1970-01-01T00:01:39Z")


def test_long_name_becomes_a_valid_label() -> None:
    long = "a" * 80
    assert children.label_value("short") == "short"
    assert len(children.label_value(long)) <= 63
    assert children.label_value(long) != children.label_value(long + "b")


@pytest.mark.parametrize(
    ("status", "what"),
    [
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, ("Evicted, low on memory", True, None)),
        ({"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True"}]}, ("", True, None)),
        (
            {
                "phase": "Failed",
                "containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}],
            },
            ("OOMKilled, exit code 137", False, 137),
        ),
    ],
)
def test_failure_of_pod_is_described(status: dict[str, Any], what: tuple[str, bool, int | None]) -> None:
    failure = pod_state.failure({"metadata": {"name": "p"}, "status": status})
    assert (failure.what, failure.disrupted, failure.exit_code) == (what[0] or "no reason was given", *what[1:])


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        (403, 'pods "a" is forbidden: exceeded quota: q, requested: pods=1', "QuotaExceeded"),
        (403, 'User "x" cannot create resource "pods" in API group ""', "NotPermitted"),
        (403, 'admission webhook "w" denied the request', "AdmissionRefused"),
        (400, 'admission webhook "w" denied the request', "AdmissionRefused"),
        (403, 'pods "a" is forbidden: violates PodSecurity "restricted:latest"', "AdmissionRefused"),
        (403, "unable to create new content in namespace a because it is being terminated", "NamespaceTerminating"),
        (422, "Pod is invalid: spec.containers[0].image: Required value", "Invalid"),
        (404, "the server could not find the requested resource", "KindMissing"),
        (409, "already exists", "NameTaken"),
        (500, "etcd", "ServerError"),
    ],
)
def test_reason_of_refusal_is_recognized(code: int, message: str, reason: str) -> None:
    assert errors.reason_of(errors.from_answer(code, message)) == reason
    assert reason in conditions.BLOCKED_REASONS


def test_generated_keys_are_readable_by_ssh() -> None:
    keys = ssh_keys()
    assert keys["ssh-privatekey"].startswith(b"-----BEGIN EC PRIVATE KEY-----")
    assert keys["ssh-publickey"].startswith(b"ecdsa-sha2-nistp521 ")
    assert ssh_keys() != keys


# --- the store -------------------------------------------------------------------------------------------------------

KEY = JobKey("mpijobs", "default", "pi")


def job(version: int, uid: str = "u") -> dict[str, Any]:
    return {"metadata": {"name": "pi", "namespace": "default", "uid": uid, "resourceVersion": str(version)}}


def pod(version: int, owner: str = "u", uid: str = "p") -> dict[str, Any]:
    owners = [{"controller": True, "kind": "MPIJob", "name": "pi", "uid": owner}]
    labels = {"farandole.dev/kind": "mpijobs"}
    metadata = {"name": "pi-worker-0", "namespace": "default", "uid": uid, "resourceVersion": str(version)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "labels": labels, "ownerReferences": owners},
        "status": {"phase": str(version)},
    }


def store() -> tuple[ClusterStore, list[JobKey]]:
    changed: list[JobKey] = []
    return ClusterStore(changed.append), changed


def phases(one: ClusterStore) -> list[str]:
    from farandole.control.kubernetes.model import Options

    observed = one.observed(KEY, 0.0, Options())
    assert observed is not None
    return [item["status"]["phase"] for item in observed.pods]


def test_older_version_never_replaces_newer_one() -> None:
    one, changed = store()
    one.put_job(KEY, job(1))
    one.put_child(pod(9))
    one.put_child(pod(10))
    one.put_child(pod(9))
    assert phases(one) == ["10"]
    assert len(changed) == 3


def test_objects_of_earlier_job_do_not_belong_to_its_namesake() -> None:
    one, _ = store()
    one.put_job(KEY, job(1, "old"))
    one.put_child(pod(2, "old"))
    one.put_job(KEY, job(3, "new"))
    assert phases(one) == []


def test_late_answer_does_not_restore_deleted_object() -> None:
    one, _ = store()
    one.put_job(KEY, job(1))
    one.put_child(pod(2))
    one.remove_child(pod(4))
    # The answer to the deletion, which says that the pod is about to go.
    one.put_child(pod(3))
    assert phases(one) == []
    one.put_child(pod(5, uid="another"))
    assert phases(one) == ["5"]
    one.remove_job(KEY, "u")
    one.put_job(KEY, job(6))
    assert list(one.jobs()) == []


def test_objects_missing_in_a_list_are_removed() -> None:
    one, _ = store()
    one.put_job(KEY, job(1))
    one.put_child(pod(2))
    # What was created after the list was made cannot be in it.
    one.keep_only("v1", "Pod", [], "1")
    assert phases(one) == ["2"]
    one.keep_only("v1", "Pod", [], "3")
    assert phases(one) == []
    assert next(iter(one.jobs()))[0].ref == Ref("kubeflow.org/v2beta1", "MPIJob", "default", "pi")


# --- the queue -------------------------------------------------------------------------------------------------------


def test_job_is_handed_out_once_at_a_time_and_additions_are_kept() -> None:
    async def test() -> None:
        now = [0.0]
        queue = WorkQueue(lambda: now[0])
        other = JobKey("mpijobs", "default", "other")
        queue.add(KEY, 5.0)
        queue.add(KEY, 1.0)
        queue.add(other, 2.0)
        now[0] = 3.0
        assert (await queue.get())[0] == KEY
        queue.add(KEY, 0.0)
        assert (await queue.get())[0] == other
        assert len(queue) == 0
        queue.done(KEY)
        assert (await queue.get())[0] == KEY

    asyncio.run(test())


def test_failed_job_is_retried_with_backoff_up_to_a_minute() -> None:
    async def test() -> None:
        queue = WorkQueue(lambda: 0.0)
        delays = [queue.add_failed(KEY) for _ in range(10)]
        assert delays[:3] == [0.5, 1.0, 2.0]
        assert delays[-1] == 60.0
        queue.succeeded(KEY)
        assert queue.add_failed(KEY, 7.0) == 7.0

    asyncio.run(test())
