"""A process that the kernel really kills, because its cgroup has no more memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.agent.memory import memory_cgroup

LIMIT = 64 * 1024 * 1024

# Enters the cgroup itself, as an agent would be in it, and kills one child by hand before another runs out of memory.
WATCHER = """
import os, signal, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write("0")
from farandole.agent.memory import OomWatch

def child(body):
    pid = os.fork()
    if pid == 0:
        body()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    return pid

def greedy():
    hoard = []
    while True:
        hoard.append(b"x" * (1 << 20))

watch = OomWatch()
watch.note()
print(watch.killed(child(lambda: os.kill(os.getpid(), signal.SIGKILL))))
print(watch.killed(child(greedy)))
print(watch.killed(child(lambda: os.kill(os.getpid(), signal.SIGKILL))))
"""


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup below this process's own, with a limit."""
    here = memory_cgroup(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    if here is None:
        pytest.skip("there is no memory cgroup here")
    folder = Path(here.folder, f"farandole-test-{os.getpid()}")
    limit = folder / ("memory.max" if here.version == 2 else "memory.limit_in_bytes")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        limit.write_text(str(LIMIT))
    except OSError as error:
        folder.rmdir()
        pytest.skip(f"no memory limit can be set here: {error}")
    swap = folder / "memory.swap.max"
    if swap.exists():
        swap.write_text("0")
    yield folder
    folder.rmdir()


def test_a_kill_for_want_of_memory_is_told_from_others(small_cgroup: Path) -> None:
    watcher = subprocess.run(
        [sys.executable, "-c", WATCHER, str(small_cgroup)], capture_output=True, text=True, timeout=60, check=False
    )
    assert watcher.returncode == 0, watcher.stderr
    before, hungry, after = watcher.stdout.splitlines()
    assert before == after == ""
    assert hungry.startswith("the kernel did it: out of memory (")
    assert f"{small_cgroup.name} may use 64 MiB" in hungry
