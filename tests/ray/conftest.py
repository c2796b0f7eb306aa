"""A Ray cluster on this machine for the tests of a module."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Generous, because the machine may have ten times as much work: only a test that fails waits that long.
SECONDS = 300.0

# Ray's own warnings are not ours.
os.environ["PYTHONWARNINGS"] = "ignore"
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_health_check_period_ms"] = "500"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
# Functions of tests are imported by Ray's processes.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), str(ROOT / "compat/horovod/src")])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = importlib.util.find_spec("ray") is None
    for item in items:
        if missing:
            item.add_marker(pytest.mark.skip("Ray is not installed"))
        item.add_marker(pytest.mark.filterwarnings("ignore"))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1500))


def patiently(start: Callable[[], Any], clean_up: Callable[[], Any] = lambda: None) -> Any:
    """Start a node: Ray gives one up that a busy machine has not started within 15 or 30 s."""
    for _ in range(4):
        with contextlib.suppress(Exception):
            return start()
        clean_up()
    return start()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster with 8 CPUs and, as far as Ray knows, 2 GPUs on one node, to which this process is connected."""
    import ray

    # Its own, although another one may run on this machine.
    patiently(
        lambda: ray.init("local", num_cpus=8, num_gpus=2, include_dashboard=False, object_store_memory=100_000_000),
        ray.shutdown,
    )
    yield ray
    ray.shutdown()


def until(happened: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait for a fact."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test, no process of a worker's job lives."""
    yield
    until(lambda: not _processes())


@pytest.fixture
def start_job(nothing_left: None, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts a `Job` in the test's folder: `start_job(options, fn, *args)`. It is ended with the test."""
    from tests.ray.jobs import Job

    jobs: list[Job] = []

    def start(options: dict[str, Any], fn: Callable[..., Any], *args: Any) -> Job:
        jobs.append(Job(tmp_path, options, fn, *args))
        return jobs[-1]

    yield start
    for job in jobs:
        job.give_up()


def _processes() -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            here = f"{ROOT}/" in command  # Not a folder whose name only begins with this one's.
            if here and any(word in command for word in ("agent.dial ", "control.agent ", "launcher.call")):
                found.append(command)
    return found
