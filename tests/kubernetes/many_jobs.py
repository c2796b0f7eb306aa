"""`python -m tests.kubernetes.many_jobs [JOBS] [WORKERS]`: what many jobs cost an operator and a real API server.

There are no nodes: pods that are made are told to run, and launchers to have succeeded, as a kubelet tells it. Numbers
are for this machine and what else it does. `tests/integration/kubernetes/many_jobs.py` does the same before the fake.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT / "tests" / "support"))

from mpi_jobs import v2beta1  # noqa: E402
from tests.integration.kubernetes.many_jobs import quantile  # noqa: E402
from tests.kubernetes import binaries, operators  # noqa: E402
from tests.kubernetes.cluster import Cluster  # noqa: E402
from tests.kubernetes.node.api import MERGE, NodeApi, Rejected  # noqa: E402
from tests.kubernetes.operators import RunningOperator  # noqa: E402

NAMESPACE = "many"
_SECONDS = 3600.0
_AT_ONCE = 16
_JOBS = f"/apis/kubeflow.org/v2beta1/namespaces/{NAMESPACE}/mpijobs"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class Player:
    """Tells the API server what kubelets would: each pod runs; a launcher has succeeded, once `finishes` is set."""

    def __init__(self, api: NodeApi) -> None:
        self.finishes = False
        self._api = api
        self._told: dict[str, str] = {}
        self._pods: dict[str, dict[str, Any]] = {}
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Look after all pods, until cancelled."""
        await self._api.watch(_PODS, self._take)

    def finish(self) -> None:
        """Let all launchers succeed."""
        self.finishes = True
        self._take(self._pods)

    def _take(self, pods: dict[str, dict[str, Any]]) -> None:
        self._pods = pods
        for uid, pod in pods.items():
            phase = "Succeeded" if self.finishes and "launcher" in pod["metadata"]["name"] else "Running"
            if self._told.get(uid) in (phase, "Succeeded") or pod["metadata"].get("deletionTimestamp"):
                continue
            self._told[uid] = phase
            task = asyncio.create_task(self._tell(pod["metadata"]["name"], phase))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _tell(self, name: str, phase: str) -> None:
        ready = [{"type": "Ready", "status": str(phase == "Running")}]
        status = {"phase": phase, "conditions": ready}
        async with self._limit:
            with contextlib.suppress(Rejected):  # It has gone meanwhile.
                await self._api.insist("PATCH", f"{_PODS}/{name}/status", {"status": status}, MERGE)


async def _create(api: NodeApi, jobs: int, workers: int) -> None:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> None:
        job = v2beta1()
        job["metadata"] = {"name": f"job-{number}", "namespace": NAMESPACE}
        job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = workers
        async with limit:
            await api.insist("POST", _JOBS, job)

    await asyncio.gather(*(one(number) for number in range(jobs)))


class Meter:
    """Reads the operator's own metrics, and its process."""

    def __init__(self, operator: RunningOperator) -> None:
        self._operator = operator

    def text(self) -> str:
        """Return the metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._operator.port}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    def jobs(self, state: str) -> int:
        """Return how many jobs are in a state."""
        match = re.search(rf'jobs{{kind="MPIJob",state="{state}"}} (\d+)', self.text())
        return int(match[1]) if match else 0

    def requests(self) -> dict[str, int]:
        """Return how many requests the operator has sent, by method."""
        return {
            method: int(count) for method, count in re.findall(r'requests_total{method="(\w+)"} (\d+)', self.text())
        }

    def megabytes(self) -> float:
        """Return the most memory that the operator has had."""
        return self._operator.peak_bytes / 1e6


async def _all_are(meter: Meter, jobs: int, state: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while (there := await asyncio.to_thread(meter.jobs, state)) < jobs:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{there} of {jobs} jobs are {state}")
        await asyncio.sleep(1)


async def measure(cluster: Cluster, meter: Meter, jobs: int, workers: int) -> None:
    """Have the jobs run and succeed, and print what that took."""
    async with NodeApi(str(cluster.control.kubeconfig)) as api:
        player = Player(api)
        playing = asyncio.create_task(player.run())
        before, began = meter.requests(), time.monotonic()
        await _create(api, jobs, workers)
        print(f"{jobs} jobs of {workers} workers are created after {time.monotonic() - began:.0f} s", flush=True)
        await _all_are(meter, jobs, "Running")
        print(f"all run after {time.monotonic() - began:.0f} s", flush=True)
        player.finish()
        await _all_are(meter, jobs, "Succeeded")
        print(f"all have succeeded after {time.monotonic() - began:.0f} s", flush=True)
        playing.cancel()
    sent = {method: count - before.get(method, 0) for method, count in meter.requests().items()}
    seconds = time.monotonic() - began
    for line in _told(meter, sent, seconds, jobs, workers):
        print(line)


def _told(meter: Meter, sent: dict[str, int], seconds: float, jobs: int, workers: int) -> Iterator[str]:
    pods, text = jobs * (workers + 1), meter.text()
    # The Lease is renewed by PUT, whatever jobs there are; so the writes are those of reconciliations.
    writes = int(re.search(r"operator_writes_total (\d+)", text)[1])  # type: ignore[index]
    yield f"writes: {writes / pods:.2f} for each pod, {writes / jobs:.1f} for each job"
    yield "requests for each job: " + ", ".join(f"{method} {n / jobs:.1f}" for method, n in sorted(sent.items()))
    total = sum(sent.values())
    yield f"requests in all: {total / jobs:.1f} for each job, {total / seconds:.0f} in a second"
    for name in ("reconcile_latency_seconds", "reconcile_seconds"):
        yield " ".join([name, *(f"p{int(share * 100)} <= {quantile(text, name, share)} s" for share in (0.5, 0.99))])
    yield f"memory of the operator: {meter.megabytes():.0f} MB at most"


def main() -> None:
    """Measure, and print it."""
    jobs, workers = (int(word) for word in sys.argv[1:] or ("500", "8"))
    if (reason := binaries.why_not()) is not None:
        sys.exit(f"error: {reason}")
    with Cluster(0, schedules=False) as cluster:
        operators.install(cluster)
        cluster.api.create(
            "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        )
        with operators.operator(cluster, "many-operator") as operator:
            cluster.until(lambda: operator.leads, "the operator leads")
            asyncio.run(measure(cluster, Meter(operator), jobs, workers))


if __name__ == "__main__":
    main()
