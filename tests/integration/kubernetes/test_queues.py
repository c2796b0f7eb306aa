"""Queues served by the operator's process, with a fake API server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_api_server import FakeApiServer
from fake_operators import fake_cluster, operator, until

from farandole.control.kubernetes import kinds
from farandole.control.kubernetes.operator import process

KINDS = (kinds.TRAINING_JOB, kinds.QUEUE)


def job(name: str, queue: str) -> dict[str, Any]:
    workers = {"min": 2, "max": 2, "replicas": 2}
    return {
        "apiVersion": "farandole.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"command": ["train"], "image": "me/train", "workers": workers, "queue": queue},
    }


def workers_of(server: FakeApiServer, name: str) -> list[str]:
    pods = [pod["metadata"]["name"] for pod in server.of("pods")]
    return sorted(pod for pod in pods if pod.startswith(f"{name}-worker"))


def reason(server: FakeApiServer, name: str) -> str:
    return str(server.objects["trainingjobs", "default", name].get("status", {}).get("reason"))


def test_jobs_of_a_queue_run_in_turn_across_operator_restarts() -> None:
    async def test() -> None:
        async with fake_cluster() as (server, _):
            main = {"apiVersion": "farandole.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "main"}}
            main["metadata"]["namespace"] = "default"  # type: ignore[index]
            await server._create("queues", "default", {**main, "spec": {"slots": 3, "policy": "fcfs"}})
            async with operator(server, kinds=KINDS):
                await server._create("trainingjobs", "default", job("a", "main"))
                await until(lambda: len(workers_of(server, "a")) == 2, "the first has its workers")
                await server._create("trainingjobs", "default", job("b", "main"))
                await server._create("trainingjobs", "default", job("c", "mian"))
                await until(
                    lambda: reason(server, "b") == "waits: 1 of 3 slots are free, it needs 2", "the second waits"
                )
                await until(lambda: "did you mean main?" in reason(server, "c"), "the third is told")
                figures = {"used": 2, "running": 1, "waiting": 1}

                def told() -> bool:
                    status = server.objects["queues", "default", "main"].get("status", {})
                    return {key: status.get(key) for key in figures} == figures

                await until(told, "the queue says how it is")
            async with operator(server, kinds=KINDS):
                await asyncio.sleep(1.0)
                assert len(workers_of(server, "a")) == 2 and workers_of(server, "b") == []
                await server.remove(("trainingjobs", "default", "a"))
                await until(lambda: len(workers_of(server, "b")) == 2, "the second has its workers")
                assert workers_of(server, "c") == []

    asyncio.run(asyncio.wait_for(test(), 100))


def test_queue_with_resource_shares_slots_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "NODES", 0.2)

    async def test() -> None:
        async with fake_cluster() as (server, _):
            main = {"apiVersion": "farandole.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "main"}}
            main["metadata"]["namespace"] = "default"  # type: ignore[index]
            await server._create(
                "queues", "default", {**main, "spec": {"resource": "nvidia.com/gpu", "policy": "fcfs"}}
            )
            async with operator(server, kinds=KINDS):
                await server._create("trainingjobs", "default", job("a", "main"))
                await until(
                    lambda: "no node that accepts pods is known" in reason(server, "a"), "there are no nodes yet"
                )
                ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "2"}}
                await server._create("nodes", "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
                await server.put("nodes", {**server.objects["nodes", "", "n"], "status": ready})
                await until(lambda: len(workers_of(server, "a")) == 2, "the nodes are looked at again")
                await server._create("trainingjobs", "default", job("b", "main"))
                await until(lambda: "0 of 2 slots are free" in reason(server, "b"), "the second waits")

    asyncio.run(asyncio.wait_for(test(), 100))
