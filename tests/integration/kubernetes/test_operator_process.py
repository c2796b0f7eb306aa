"""The operator's process with a fake API server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import aiohttp
import pytest
from fake_api_server import FakeApiServer, FakeNode
from fake_operators import OperatorThread, fake_cluster, holds, operator, until
from mpi_jobs import v1alpha2, v2beta1

from farandole.control.kubernetes.api import client as api
from farandole.control.kubernetes.operator import election


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 100))


async def create(server: FakeApiServer, job: dict[str, Any], name: str = "pi") -> None:
    job["metadata"] = {"name": name, "namespace": "default"}
    job["apiVersion"] = "kubeflow.org/v2beta1"
    await server._create("mpijobs", "default", job)


def launchers_succeed(node: FakeNode) -> None:
    node.finish = lambda pod: "Succeeded" if "launcher" in pod["metadata"]["name"] else ""


def test_job_runs_from_creation_to_cleanup() -> None:
    async def test() -> None:
        async with fake_cluster() as (server, node), operator(server):
            await create(server, v2beta1())
            await until(lambda: holds(server, "pi", "Running"), "it runs")
            (secret,) = server.of("secrets")
            assert set(secret["data"]) == {"ssh-privatekey", "ssh-publickey"}
            launchers_succeed(node)
            await until(lambda: holds(server, "pi", "Succeeded"), "it succeeds")
            await until(lambda: len(server.of("pods")) == 1, "its workers are gone")
            writes = sum(count for (_, plural), count in server.writes.items() if plural != "leases")
            assert writes <= 10 * 3, f"for three pods: {server.writes}"
            reasons = [event["reason"] for event in server.of("events")]
            assert reasons == ["MPIJobCreated", "MPIJobRunning", "MPIJobSucceeded"]
            await asyncio.sleep(0.5)
            before = sum(server.writes.values())
            await asyncio.sleep(1.5)
            after = sum(server.writes.values()) - server.writes["PUT", "leases"]
            assert after <= before, "a job that has ended is left alone"

    run(test())


def test_restarted_operator_continues() -> None:
    async def test() -> None:
        async with fake_cluster() as (server, node):
            async with operator(server):
                await create(server, v2beta1())
                await until(lambda: holds(server, "pi", "Running"), "it runs")
            await server.remove(("pods", "default", "pi-worker-0"))
            async with operator(server):
                await until(lambda: holds(server, "pi", "Restarting"), "the loss is noticed")
                await until(lambda: holds(server, "pi", "Running"), "it runs again")
                launchers_succeed(node)
                await until(lambda: holds(server, "pi", "Succeeded"), "it succeeds")
            assert len(server.of("secrets")) == 1

    run(test())


def test_broken_watches_and_expired_versions_lose_no_change() -> None:
    async def test() -> None:
        async with fake_cluster() as (server, _), operator(server) as one:
            await create(server, v2beta1())
            await until(lambda: holds(server, "pi", "Running"), "it runs")
            relists = sum(watch.relists for watch in one.watches)
            await server.cut_watches()
            server.down = True
            await asyncio.sleep(0.1)
            # Its end is told to nobody: what is not in the next list is gone.
            await server.remove(("pods", "default", "pi-worker-1"))
            await server.forget()
            server.down = False
            await until(lambda: ("pods", "default", "pi-worker-1") in server.objects, "the worker is made again")
            await until(lambda: holds(server, "pi", "Running"), "it runs again")
            assert sum(watch.relists for watch in one.watches) > relists

    run(test())


def test_operator_survives_outage_of_api_server() -> None:
    async def test() -> None:
        async with fake_cluster() as (server, node), operator(server):
            await create(server, v2beta1())
            await until(lambda: len(server.of("pods")) >= 1, "it starts")
            server.down = True
            await server.cut_watches()
            await asyncio.sleep(1.0)
            server.down = False
            await until(lambda: holds(server, "pi", "Running"), "it runs", 60)
            launchers_succeed(node)
            await until(lambda: holds(server, "pi", "Succeeded"), "it succeeds", 60)

    run(test())


def test_watch_recovers_when_kind_is_briefly_unknown() -> None:
    async def test() -> None:
        async with fake_cluster() as (server, _), operator(server) as one:
            await create(server, v2beta1())
            await until(lambda: holds(server, "pi", "Running"), "it runs")
            server.lacks = {"mpijobs"}
            await server.cut_watches()
            await until(lambda: "could not find" in one.watches[0]._trouble, "it is noticed")
            await server.remove(("pods", "default", "pi-worker-0"))
            server.lacks = set()
            await until(lambda: ("pods", "default", "pi-worker-0") in server.objects, "the worker is made again")
            await create(server, v2beta1(), "next")
            await until(lambda: holds(server, "next", "Running"), "the next job is seen")

    run(test())


@pytest.mark.parametrize("line", [b"not JSON\n", b"[]\n", b'{"type": "ADDED"}\n', b'{"type": "ADDED", "object": {}}\n'])
def test_malformed_event_does_not_end_watch(line: bytes) -> None:
    async def test() -> None:
        async with fake_cluster() as (server, _), operator(server) as one:
            await until(lambda: one.election.leading, "it leads")
            server.says = line
            await server.cut_watches()
            await until(lambda: all(watch.relists > 1 for watch in one.watches), "all watches have ended")
            server.says = b""
            await create(server, v2beta1())
            await until(lambda: holds(server, "pi", "Running"), "it runs")

    run(test())


def test_silent_connection_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "WATCH_SECONDS", 1)
    monkeypatch.setattr(api, "_LATE_SECONDS", 0.5)

    async def test() -> None:
        async with fake_cluster() as (server, _), operator(server) as one:
            await until(lambda: one.election.leading, "it leads")
            server.silent = True
            await create(server, v2beta1())
            await until(lambda: holds(server, "pi", "Running"), "lists tell what watches do not")
            server.silent = False

    run(test())


def test_second_operator_takes_over() -> None:
    async def test() -> None:
        async with fake_cluster() as (server, node):
            first = OperatorThread(server, identity="first")
            await until(lambda: first.leading, "the first leads")
            second = OperatorThread(server, identity="second")
            try:
                await create(server, v1alpha2(), "mnist")
                await until(lambda: holds(server, "mnist", "Running"), "it runs")
                assert not second.leading
                assert second.operator.metrics.writes == 0
                await first.stop()
                await until(lambda: second.leading, "the second leads")
                launchers_succeed(node)
                await until(lambda: holds(server, "mnist", "Succeeded"), "it succeeds")
            finally:
                await second.stop()
            lease = server.objects["leases", "default", "farandole-operator"]
            assert lease["spec"]["leaseTransitions"] == 1

    run(test())


def test_changes_during_lapsed_lease_are_handled_after_renewal() -> None:
    async def test() -> None:
        async with fake_cluster() as (server, _), operator(server) as one:
            await create(server, v2beta1())
            await until(lambda: holds(server, "pi", "Running"), "it runs")
            # As on a machine that was too busy to renew in time, without anybody else who led meanwhile.
            renew = one.election._try

            async def later() -> None:
                await asyncio.sleep(1.0)
                await renew()

            one.election._try = later  # type: ignore[method-assign]
            one.election._renewed = float("-inf")
            await server.remove(("pods", "default", "pi-worker-0"))
            await asyncio.sleep(0.6)
            assert ("pods", "default", "pi-worker-0") not in server.objects
            await until(lambda: ("pods", "default", "pi-worker-0") in server.objects, "the worker is made again", 15)

    run(test())


def test_operator_without_lease_stops_before_another_may_start() -> None:
    assert election.RENEW_WITHIN + election.EVERY < 1


def test_refused_object_is_retried_with_backoff_and_reported() -> None:
    async def test() -> None:
        async with fake_cluster() as (server, _), operator(server):
            tries: list[str] = []

            def refuse(plural: str, obj: dict[str, Any]) -> str:
                if plural == "pods" and obj["metadata"]["name"] == "pi-worker-1":
                    tries.append(plural)
                    return 'pods "pi-worker-1" is forbidden: exceeded quota: small'
                return ""

            server.refuse = refuse
            await create(server, v2beta1())
            await until(lambda: holds(server, "pi", "Blocked"), "the job says what is in its way")
            await asyncio.sleep(2.0)
            assert len(tries) == 1, "a hot loop"
            (condition,) = [
                item
                for item in server.objects["mpijobs", "default", "pi"]["status"]["conditions"]
                if item["type"] == "Blocked"
            ]
            assert condition["reason"] == "QuotaExceeded"
            server.refuse = lambda plural, obj: ""
            await until(lambda: holds(server, "pi", "Running"), "it runs when there is room")
            assert not holds(server, "pi", "Blocked")

    run(test())


def test_objects_of_other_owners_are_never_changed() -> None:
    async def test() -> None:
        async with fake_cluster() as (server, _), operator(server):
            theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "pi-config"}, "data": {"a": "b"}}
            await server._create("configmaps", "default", theirs)
            await create(server, v2beta1())
            await until(lambda: holds(server, "pi", "Blocked"), "the job says what is in its way")
            assert server.objects["configmaps", "default", "pi-config"]["data"] == {"a": "b"}

    run(test())


def test_surplus_worker_is_drained_and_deleted() -> None:
    async def test() -> None:
        async with fake_cluster() as (server, _), operator(server):
            await create(server, v2beta1())
            await until(lambda: holds(server, "pi", "Running"), "it runs")
            job = server.objects["mpijobs", "default", "pi"]
            spec = {**job["spec"], "mpiReplicaSpecs": {**job["spec"]["mpiReplicaSpecs"]}}
            spec["mpiReplicaSpecs"]["Worker"] = {**spec["mpiReplicaSpecs"]["Worker"], "replicas": 1}
            await server.put("mpijobs", {**job, "spec": spec})
            config = "configmaps", "default", "pi-config"
            await until(lambda: "worker-1" not in server.objects[config]["data"]["hostfile"], "it leaves the list")
            assert ("pods", "default", "pi-worker-1") in server.objects
            await until(lambda: ("pods", "default", "pi-worker-1") not in server.objects, "it goes")
            assert holds(server, "pi", "Running")

    run(test())


def test_metrics_show_states_of_jobs() -> None:
    async def test() -> None:
        async with fake_cluster() as (server, node), operator(server, port=0) as one:
            await create(server, v2beta1())
            await until(lambda: holds(server, "pi", "Running"), "it runs")
            launchers_succeed(node)
            await create(server, v2beta1(), "next")
            await until(lambda: holds(server, "next", "Succeeded"), "the second succeeds")
            await until(lambda: one.metrics.mpi_jobs["successful"] == 2, "both are counted")
            async with aiohttp.ClientSession(f"http://127.0.0.1:{one.port}") as session:
                async with session.get("/metrics") as answer:
                    text = await answer.text()
                    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
                for path, status in (("/readyz", 200), ("/healthz", 200), ("/nothing", 404)):
                    async with session.get(path) as answer:
                        assert answer.status == status
                async with session.post("/metrics") as answer:
                    assert answer.status == 405
            assert 'farandole_operator_jobs{kind="MPIJob",state="Succeeded"} 2' in text
            assert "farandole_operator_leading 1" in text
            assert "mpi_operator_jobs_created_total 2" in text
            assert "mpi_operator_jobs_successful_total 2" in text
            assert "mpi_operator_jobs_failed_total 0" in text
            assert 'mpi_operator_job_info{launcher="next-launcher",namespace="default"} 1' in text
            assert text.endswith("# EOF\n")

    run(test())
