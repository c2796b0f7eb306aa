"""Control groups in which memory is scarce."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from farandole.control.agent.oom import memory_cgroup


@contextlib.contextmanager
def cgroup_with(limit: int) -> Iterator[Path]:
    """Create a memory cgroup below this process's own; write a process id into its `cgroup.procs` to add a process.

    Processes that remain in it at the end are killed. The test is skipped if this is not possible.

    Args:
        limit: bytes that all its processes together may use.
    """
    here = memory_cgroup(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    if here is None:
        pytest.skip("there is no memory cgroup here")
    folder = Path(here.folder, f"farandole-test-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / ("memory.max" if here.version == 2 else "memory.limit_in_bytes")).write_text(str(limit))
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"no cgroup with a memory limit can be made here: {error}")
    swap = folder / "memory.swap.max"
    if swap.exists():
        swap.write_text("0")
    try:
        yield folder
    finally:
        _end_all_in(folder)
        folder.rmdir()


def _end_all_in(folder: Path) -> None:
    def living() -> list[str]:
        return (folder / "cgroup.procs").read_text().split()

    for pid in living():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    until(lambda: not living(), "the cgroup is empty")
