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
    """Make a memory cgroup below this process's own; a process that is written into its `cgroup.procs` is in it.

    What is left in it at the end is killed. The test is skipped where that cannot be done.

    Args:
        limit: bytes that its processes may use together.
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
