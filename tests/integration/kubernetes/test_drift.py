"""Deleted objects of a running job are created again, with a fake API server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from fake_api_server import FakeApiServer
from fake_operators import fake_cluster, operator, until

from farandole.control.kubernetes import kinds
from farandole.control.kubernetes.operator import carry_out

KINDS = ("services", "serviceaccounts", "roles", "rolebindings", "networkpolicies", "configmaps")


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 100))


async def create(server: FakeApiServer) -> None:
    spec = {"command": ["true"], "image": "none", "workers": {"min": 1, "max": 2, "replicas": 2}}
    job = {"apiVersion": "farandole.dev/v1alpha1", "kind": "TrainingJob", "spec": spec}
    await server._create("trainingjobs", "default", {**job, "metadata": {"name": "job", "namespace": "default"}})


def running(server: FakeApiServer) -> int:
    return sum(pod["status"].get("phase") == "Running" for pod in server.of("pods"))


def test_deleted_objects_are_created_again() -> None:
    async def test() -> None:
        async with fake_cluster() as (server, _), operator(server, kinds=(kinds.TRAINING_JOB,)):
            await create(server)
            await until(lambda: running(server) == 3, "it runs")
            keys = [key for key in server.objects if key[0] in KINDS]
            assert sorted(key[0] for key in keys) == sorted([*KINDS, "configmaps"])
            for key in keys:
                uid = server.objects[key]["metadata"]["uid"]
                await server.remove(key)
                await until(lambda key=key: key in server.objects, f"{key} is there again")
                assert server.objects[key]["metadata"]["uid"] != uid
            await server.remove(("trainingjobs", "default", "job"))
            await asyncio.sleep(0.5)
            assert [key for key in server.objects if key[0] in (*KINDS, "secrets", "pods")] == []

    run(test())


def test_deleted_secret_is_created_again_when_a_pod_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry_out, "START_SECONDS", 0.5)
    monkeypatch.setattr(carry_out, "SECRET_SECONDS", 1.0)

    async def test() -> None:
        async with fake_cluster() as (server, node), operator(server, kinds=(kinds.TRAINING_JOB,)):
            await create(server)
            await until(lambda: running(server) == 3, "it runs")
            (key,) = [key for key in server.objects if key[0] == "secrets"]
            await asyncio.sleep(1.0)
            tries = server.writes["POST", "secrets"]
            assert tries == 1, "nobody asks while all pods run"
            node.holds = lambda pod: key not in server.objects
            await server.remove(key)
            await server.remove(("pods", "default", "job-worker-1"))
            await until(lambda: key in server.objects, "the secret is there again")
            await until(lambda: running(server) == 3, "the pod has it")
            assert server.writes["POST", "secrets"] <= tries + 3, "a hot loop"

    run(test())


def test_changes_of_failover_state_cause_no_reconciliation() -> None:
    async def test() -> None:
        async with fake_cluster() as (server, _), operator(server, kinds=(kinds.TRAINING_JOB,)) as one:
            await create(server)
            await until(lambda: running(server) == 3, "it runs")
            await asyncio.sleep(1.0)
            before = sum(one.metrics.reconciles.values())
            state = server.objects["configmaps", "default", "job-failover"]
            for number in range(5):
                await server.put("configmaps", {**state, "data": {"roster": str(number)}})
                await asyncio.sleep(0.3)
            assert sum(one.metrics.reconciles.values()) == before

    run(test())
