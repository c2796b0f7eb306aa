"""The behaviour of an API server that the operator relies on: checked on a real server and on the fake one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from farandole.control.kubernetes.api.client import Api
from farandole.control.kubernetes.api.errors import Conflict, NotFound
from farandole.control.kubernetes.model import Ref

LIMIT = 20.0
# The controller that deletes owned objects discovers new kinds every 30 seconds.
COLLECTED = 80.0


def config(namespace: str, name: str, labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def ref(namespace: str, name: str, kind: str = "ConfigMap") -> Ref:
    return Ref("v1", kind, namespace, name)


def mpi_job(namespace: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 2}}},
    }


async def what_is_created_has_a_uid_and_a_version_and_is_there_once(api: Api, namespace: str) -> None:
    made = await api.create(config(namespace, "once", a="b"))
    assert made["metadata"]["uid"] and made["metadata"]["resourceVersion"].isdecimal()
    with pytest.raises(Conflict):
        await api.create(config(namespace, "once"))
    assert (await api.get(ref(namespace, "once")))["data"] == {"a": "b"}
    with pytest.raises(NotFound):
        await api.get(ref(namespace, "never"))


async def who_replaces_what_has_changed_is_refused(api: Api, namespace: str) -> None:
    first = await api.create(config(namespace, "race", a="0"))
    second = await api.replace({**first, "data": {"a": "1"}})
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    with pytest.raises(Conflict):
        await api.replace({**first, "data": {"a": "2"}})


async def applying_creates_and_then_changes(api: Api, namespace: str) -> None:
    first = await api.apply(config(namespace, "applied", a="0"))
    second = await api.apply(config(namespace, "applied", a="1", b="2"))
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert second["data"] == {"a": "1", "b": "2"}
    assert (await api.apply(config(namespace, "applied", a="1")))["data"] == {"a": "1"}


async def a_merge_changes_what_it_names(api: Api, namespace: str) -> None:
    await api.create(config(namespace, "merged", {"x": "1", "y": "2"}, a="0"))
    changed = await api.merge(ref(namespace, "merged"), {"metadata": {"labels": {"x": "3", "y": None}}})
    assert changed["metadata"]["labels"] == {"x": "3"}
    assert changed["data"] == {"a": "0"}


async def a_deletion_means_one_uid(api: Api, namespace: str) -> None:
    made = await api.create(config(namespace, "gone"))
    with pytest.raises(Conflict):
        await api.delete(ref(namespace, "gone"), "another-uid")
    await api.delete(ref(namespace, "gone"), made["metadata"]["uid"])
    with pytest.raises(NotFound):
        await api.delete(ref(namespace, "gone"), made["metadata"]["uid"])


async def a_status_is_written_apart(api: Api, namespace: str) -> None:
    made = await api.create({**mpi_job(namespace, "status"), "status": {"state": "Mine"}})
    assert made.get("status", {}) == {}
    spec = {**made["spec"], "slotsPerWorker": 7}
    written = await api.replace(
        {**made, "spec": spec, "status": {"state": "Running", "odd": [1, {"a": None}]}}, "status"
    )
    assert written["status"]["state"] == "Running"
    assert written["spec"].get("slotsPerWorker") != 7
    with pytest.raises(Conflict):
        await api.replace({**made, "status": {"state": "Old"}}, "status")
    again = await api.merge(Ref("kubeflow.org/v2beta1", "MPIJob", namespace, "status"), {"status": {"state": "Mine"}})
    assert again["status"]["state"] == "Running"


async def a_list_has_what_has_the_labels(api: Api, namespace: str) -> None:
    for name, labels in (("l1", {"t": "a", "u": "b"}), ("l2", {"t": "a"}), ("l3", {})):
        await api.create(config(namespace, name, labels))
    items, version = await api.list("v1", "configmaps", namespace, "t=a")
    assert sorted(item["metadata"]["name"] for item in items) == ["l1", "l2"]
    items, _ = await api.list("v1", "configmaps", namespace, "t=a,u=b")
    assert [item["metadata"]["name"] for item in items] == ["l1"]
    assert version.isdecimal()


async def a_watch_goes_on_from_a_list(api: Api, namespace: str) -> None:
    before = await api.create(config(namespace, "w0", {"w": "1"}))
    _, version = await api.list("v1", "configmaps", namespace, "w=1")
    seen: list[tuple[str, str]] = []

    async def watch() -> None:
        async with api.watch("v1", "configmaps", version, namespace, "w=1") as changes:
            async for change, obj in changes:
                if change != "BOOKMARK":
                    seen.append((change, obj["metadata"]["name"]))
                if change == "DELETED":
                    return

    task = asyncio.create_task(watch())
    await api.create(config(namespace, "w1", {"w": "1"}))
    await api.create(config(namespace, "other", {"w": "2"}))
    await api.merge(ref(namespace, "w1"), {"data": {"a": "b"}})
    await api.delete(ref(namespace, "w0"), before["metadata"]["uid"])
    await asyncio.wait_for(task, LIMIT)
    assert seen == [("ADDED", "w1"), ("MODIFIED", "w1"), ("DELETED", "w0")]


async def only_metadata_is_told_where_it_is_asked_for(api: Api, namespace: str) -> None:
    assert (await api.list("v1", "configmaps", namespace, "m,!mark", only_metadata=True))[0] == []
    made = await api.create(config(namespace, "m0", {"m": "1"}, a="b"))
    await api.create(config(namespace, "marked", {"m": "1", "mark": "x"}))
    items, version = await api.list("v1", "configmaps", namespace, "m,!mark", only_metadata=True)
    (found,) = items
    assert (found["metadata"]["uid"], found.get("data")) == (made["metadata"]["uid"], None)
    seen: list[tuple[str, str]] = []

    async def watch() -> None:
        async with api.watch("v1", "configmaps", version, namespace, "m,!mark", only_metadata=True) as changes:
            async for change, obj in changes:
                if change != "BOOKMARK":
                    assert "data" not in obj and obj["metadata"]["labels"] == {"m": "1"}
                    seen.append((change, obj["metadata"]["name"]))
                if change == "DELETED":
                    return

    task = asyncio.create_task(watch())
    await api.create(config(namespace, "m1", {"m": "1"}, a="b"))
    await api.delete(ref(namespace, "m0"), made["metadata"]["uid"])
    await asyncio.wait_for(task, LIMIT)
    assert seen == [("ADDED", "m1"), ("DELETED", "m0")]


async def what_a_job_owns_goes_with_it(api: Api, namespace: str) -> None:
    job = await api.create(mpi_job(namespace, "owner"))
    owner = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "owner", "controller": True}
    owned = config(namespace, "owned")
    owned["metadata"]["ownerReferences"] = [{**owner, "uid": job["metadata"]["uid"]}]
    await api.create(owned)
    await api.delete(Ref("kubeflow.org/v2beta1", "MPIJob", namespace, "owner"), job["metadata"]["uid"])
    end = asyncio.get_running_loop().time() + COLLECTED
    while True:
        try:
            await api.get(ref(namespace, "owned"))
        except NotFound:
            return
        assert asyncio.get_running_loop().time() < end, "it is still there"
        await asyncio.sleep(0.1)


async def a_pod_that_runs_is_told_to_go_before_it_goes(api: Api, namespace: str) -> None:
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "slow", "namespace": namespace}}
    command = ["sh", "-c", "trap 'sleep 1; exit' TERM; while :; do sleep 0.1; done"]
    pod["spec"] = {"containers": [{"name": "c", "image": "none", "command": command}], "restartPolicy": "Never"}
    made = await api.create(pod)
    end = asyncio.get_running_loop().time() + LIMIT
    while (await api.get(ref(namespace, "slow", "Pod")))["status"].get("phase") != "Running":
        assert asyncio.get_running_loop().time() < end, "it does not run"
        await asyncio.sleep(0.1)
    answer = await api.delete(ref(namespace, "slow", "Pod"), made["metadata"]["uid"])
    assert answer["metadata"]["deletionTimestamp"]
    while True:
        try:
            await api.get(ref(namespace, "slow", "Pod"))
        except NotFound:
            return
        assert asyncio.get_running_loop().time() < end, "it does not go"
        await asyncio.sleep(0.1)


Check = Callable[[Api, str], Awaitable[None]]
CHECKS: tuple[Check, ...] = (
    what_is_created_has_a_uid_and_a_version_and_is_there_once,
    who_replaces_what_has_changed_is_refused,
    applying_creates_and_then_changes,
    a_merge_changes_what_it_names,
    a_deletion_means_one_uid,
    a_status_is_written_apart,
    a_list_has_what_has_the_labels,
    a_watch_goes_on_from_a_list,
    only_metadata_is_told_where_it_is_asked_for,
    what_a_job_owns_goes_with_it,
    a_pod_that_runs_is_told_to_go_before_it_goes,
)
