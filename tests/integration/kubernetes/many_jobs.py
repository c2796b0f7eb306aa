"""`python -m tests.integration.kubernetes.many_jobs [JOBS] [WORKERS]`: one operator, many jobs, and what that costs.

The operator is a process of its own, before the fake API server; numbers are for this machine and what else it does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "support")]

from fake_api_server import FakeApiServer, FakeNode  # noqa: E402
from fake_operators import holds  # noqa: E402
from mpi_jobs import v2beta1  # noqa: E402

PORT = 18099


def kubeconfig(server: FakeApiServer) -> dict[str, Any]:
    return {
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": server.url}}],
        "users": [{"name": "fake", "user": {"token": "none"}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
    }


async def main(jobs: int, workers: int) -> None:
    server = FakeApiServer()
    await server.start()
    node = FakeNode(server, start=0.5)
    kubelet = asyncio.create_task(node.run())
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "kubeconfig"
        config.write_text(json.dumps(kubeconfig(server)))
        words = ["-m", "farandole", "kubernetes", "operator", "--address", "127.0.0.1", "--port", str(PORT)]
        operator = await asyncio.create_subprocess_exec(
            sys.executable, *words, env={**os.environ, "KUBECONFIG": str(config)}, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            await measure(server, node, operator.pid, jobs, workers)
        finally:
            operator.terminate()
            await operator.wait()
            kubelet.cancel()
            await server.close()


async def measure(server: FakeApiServer, node: FakeNode, pid: int, jobs: int, workers: int) -> None:
    began = time.monotonic()
    for number in range(jobs):
        job = v2beta1()
        job["metadata"] = {"name": f"job-{number}", "namespace": "default"}
        job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = workers
        await server._create("mpijobs", "default", job)
    await all_hold(server, jobs, "Running")
    print(f"{jobs} jobs of {workers} workers run after {time.monotonic() - began:.0f} s")
    memory = Path(f"/proc/{pid}/status").read_text()
    node.finish = lambda pod: "Succeeded" if "launcher" in pod["metadata"]["name"] else ""
    await all_hold(server, jobs, "Succeeded")
    print(f"all have succeeded after {time.monotonic() - began:.0f} s")
    await asyncio.sleep(3)
    print(next(line for line in memory.splitlines() if line.startswith("VmHWM")))
    pods = jobs * (workers + 1)
    writes = {key: count for key, count in server.writes.items() if key[1] != "leases"}
    print(f"writes per pod: {sum(writes.values()) / pods:.2f}; per job: {sum(writes.values()) / jobs:.1f}")
    print("   ", ", ".join(f"{method} {plural} {n / jobs:.1f}" for (method, plural), n in sorted(writes.items())))
    async with aiohttp.ClientSession(f"http://127.0.0.1:{PORT}") as session, session.get("/metrics") as answer:
        text = await answer.text()
    for name in ("reconcile_latency_seconds", "reconcile_seconds"):
        print(name, *(f"p{int(share * 100)} <= {quantile(text, name, share)} s" for share in (0.5, 0.99)))


def quantile(text: str, name: str, share: float) -> str:
    """Return the bound of the bucket in which a share of all samples ends."""
    lines = [line for line in text.splitlines() if line.startswith(f"farandole_operator_{name}_bucket")]
    counts = [(line.split('"')[1], int(line.split()[-1])) for line in lines]
    return next(bound for bound, count in counts if count >= share * counts[-1][1])


async def all_hold(server: FakeApiServer, jobs: int, kind: str) -> None:
    end = time.monotonic() + 900
    while sum(holds(server, f"job-{number}", kind) for number in range(jobs)) < jobs:
        assert time.monotonic() < end, f"not all are {kind}"
        await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(main(*(int(word) for word in sys.argv[1:] or ("500", "8"))))
