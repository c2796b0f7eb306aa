"""Requests of a daemon to a running elastic job: hosts are added, drained and removed; the job is resized."""

from __future__ import annotations

import asyncio
import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.output.console import Console, text_writer
from farandole.control.launcher.start.launch import launch
from farandole.errors import SpecError


def test_hosts_and_sizes_change_by_hand(tmp_path: Path, dancer: Callable[[str], Path]) -> None:
    spec = LaunchSpec(
        command=(sys.executable, str(dancer("dance()"))),
        num_proc=1,
        hosts=(Host("localhost", 1),),
        elastic=Elastic(1, None, grace=10),
    )
    environment = {**os.environ, "TEST_DIRECTORY": str(tmp_path)}
    machine = Machine("here", 2, 0, str(tmp_path), environment)
    out, err = io.StringIO(), io.StringIO()

    async def play() -> int:
        jobs: list[Any] = []
        running = asyncio.create_task(
            launch(spec, machine, Console(text_writer(out), text_writer(err)), started=jobs.append)
        )
        while not jobs:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(_change(jobs[0]), 60)
        (tmp_path / "finish").touch()
        return (await asyncio.wait_for(running, 60)).exit_code

    assert asyncio.run(play()) == 0, err.getvalue()
    assert re.search(r"workers? .* on 127\.0\.0\.1 joins? as .* go on as generation 2", err.getvalue())


async def _change(job: Any) -> None:
    await _becomes(job, 1)
    assert "127.0.0.1 has 2 slots now" in job.add_host(Host("127.0.0.1"), 2)
    await _becomes(job, 3)
    assert [(row.name, row.slots, len(row.workers), row.state) for row in job.list_hosts()] == [
        ("localhost", 1, 1, "ready"),
        ("127.0.0.1", 2, 2, "ready"),
    ]
    job.resize(1, 2)
    await _becomes(job, 2)
    assert "there leaves at the end of a step, within 10 s; " in job.drain_host("localhost")
    # Another worker starts on the other host at once, and may come into the world when this one leaves it.
    while [row.name for row in job.list_hosts()] != ["127.0.0.1"]:
        await asyncio.sleep(0.02)
    await _becomes(job, 2)
    job.resize(1, None)
    assert "2 workers on" not in job.add_host(Host("localhost", 1), 1)
    await _becomes(job, 3)
    assert re.fullmatch(r"host 127\.0\.0\.1 is removed, with workers \d+ and \d+", job.remove_host("127.0.0.1"))
    await _becomes(job, 1)
    with pytest.raises(SpecError, match="host mars is not one of the job's"):
        job.drain_host("mars")
    assert job.status()["generation"] >= 5
    assert [row.name for row in job.list_hosts()] == ["localhost"]


async def _becomes(job: Any, size: int) -> None:
    while job.status()["size"] != size or any(row.state != "ready" for row in job.list_hosts()):
        await asyncio.sleep(0.02)
