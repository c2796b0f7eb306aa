"""Probes: whether a container has started, is ready, and lives."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.kubernetes.node.container import Container
from tests.kubernetes.node.network import PodNetwork


async def watch(container: Container, address: str, network: PodNetwork, report: Callable[[], Awaitable[None]]) -> None:
    """Probe a container that runs, until this is cancelled. Without a readiness probe it is ready at once."""
    startup = container.spec.get("startupProbe")
    if startup is not None and not await _passes_in_time(startup, container, address, network):
        container.kill(signal.SIGKILL)
        return
    watches = [_watch_readiness(container, address, network, report)]
    if (liveness := container.spec.get("livenessProbe")) is not None:
        watches.append(_watch_life(liveness, container, address, network))
    await asyncio.gather(*watches)


async def _passes_in_time(probe: dict[str, Any], container: Container, address: str, network: PodNetwork) -> bool:
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    for _ in range(probe.get("failureThreshold", 3)):
        if await _passes(probe, container, address, network):
            return True
        await asyncio.sleep(probe.get("periodSeconds", 10))
    return False


async def _watch_readiness(
    container: Container, address: str, network: PodNetwork, report: Callable[[], Awaitable[None]]
) -> None:
    probe = container.spec.get("readinessProbe")
    if probe is None:
        container.state.ready = container.state.running
        await report()
        return
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    passed = failed = 0
    while True:
        if await _passes(probe, container, address, network):
            passed, failed = passed + 1, 0
        else:
            passed, failed = 0, failed + 1
        before = container.state.ready
        if passed >= probe.get("successThreshold", 1):
            container.state.ready = container.state.running
        elif failed >= probe.get("failureThreshold", 3):
            container.state.ready = False
        if container.state.ready != before:
            await report()
        await asyncio.sleep(probe.get("periodSeconds", 10))


async def _watch_life(probe: dict[str, Any], container: Container, address: str, network: PodNetwork) -> None:
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    failed = 0
    while failed < probe.get("failureThreshold", 3):
        failed = 0 if await _passes(probe, container, address, network) else failed + 1
        await asyncio.sleep(probe.get("periodSeconds", 10))
    container.kill(signal.SIGTERM)
    await asyncio.sleep(1)
    container.kill(signal.SIGKILL)


async def _passes(probe: dict[str, Any], container: Container, address: str, network: PodNetwork) -> bool:
    seconds = float(probe.get("timeoutSeconds", 1))
    if "exec" in probe:
        return await run_inside(container, probe["exec"]["command"], seconds) == 0
    if "tcpSocket" in probe:
        port = _port(probe["tcpSocket"]["port"], container)
        return await asyncio.to_thread(network.can_connect, address, port, seconds)
    request = probe["httpGet"]
    port = _port(request["port"], container)
    status = await asyncio.to_thread(network.http_status, address, port, request.get("path", "/"), seconds)
    return 200 <= status < 400


def _port(port: int | str, container: Container) -> int:
    named = {each.get("name"): each["containerPort"] for each in container.spec.get("ports", [])}
    return int(named.get(port, port))


async def run_inside(container: Container, command: Sequence[str], seconds: float) -> int:
    """Run a command in a container and return its exit code; -1 when it did not end in time, or could not run."""
    words = container.enter(command)
    if words is None:
        return -1
    nowhere = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *words, env=container.environment, stdin=nowhere, stdout=nowhere, stderr=nowhere
    )
    try:
        return await asyncio.wait_for(process.wait(), seconds)
    except (TimeoutError, asyncio.TimeoutError):
        process.kill()
        await process.wait()
        return -1
