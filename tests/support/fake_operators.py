"""Operators that serve a fake API server, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from fake_api_server import FakeApiServer, FakeNode
from lightkube.config.kubeconfig import KubeConfig, SingleConfig

from farandole.control.kubernetes import conditions, kinds
from farandole.control.kubernetes.model import Options
from farandole.control.kubernetes.operator.process import Operator, OperatorSettings

LIMIT = 30.0


def config(server: FakeApiServer) -> SingleConfig:
    """Return a client's configuration for the fake."""
    return KubeConfig.from_dict(
        {
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": server.url}}],
            "users": [{"name": "fake", "user": {"token": "none"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        }
    ).get()


@contextlib.asynccontextmanager
async def fake_cluster(node: bool = True) -> AsyncIterator[tuple[FakeApiServer, FakeNode]]:
    """Run a fake API server with a fake kubelet."""
    server = FakeApiServer()
    await server.start()
    kubelet = FakeNode(server)
    task = asyncio.create_task(kubelet.run()) if node else None
    try:
        yield server, kubelet
    finally:
        if task is not None:
            task.cancel()
        await server.close()


class OperatorThread:
    """An operator in a thread with a separate event loop, as in its own process."""

    def __init__(self, server: FakeApiServer, **settings: Any) -> None:
        settings = {"options": Options(drain_seconds=0.5), "kinds": (kinds.MPI_JOB,), "host": "127.0.0.1", **settings}
        self._settings = OperatorSettings(**{"port": None, **settings})
        self._config = config(server)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._started.wait(LIMIT)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.operator = Operator(self._settings, self._config)
        self._started.set()
        await self.operator.run()

    @property
    def leading(self) -> bool:
        return self.operator.election.leading

    async def stop(self) -> None:
        self._loop.call_soon_threadsafe(self.operator.stop.set)
        await asyncio.to_thread(self._thread.join, LIMIT)
        assert not self._thread.is_alive()


@contextlib.asynccontextmanager
async def operator(server: FakeApiServer, **settings: Any) -> AsyncIterator[Operator]:
    """Run an operator until the end of the block."""
    one = OperatorThread(server, **settings)
    try:
        yield one.operator
    finally:
        await one.stop()


async def until(true: Callable[[], Any], what: str, limit: float = LIMIT) -> None:
    """Wait for a condition; fail with its description."""
    end = asyncio.get_running_loop().time() + limit
    while not true():
        assert asyncio.get_running_loop().time() < end, f"not within {limit:g} s: {what}"
        await asyncio.sleep(0.02)


def holds(server: FakeApiServer, name: str, kind: str) -> bool:
    """Return whether a condition of an MPIJob is True."""
    job = server.objects.get(("mpijobs", "default", name))
    return job is not None and conditions.holds(conditions.of_status(job.get("status")), kind)
