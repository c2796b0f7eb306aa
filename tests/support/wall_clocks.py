"""Wall clocks that jump, in processes that are started with `wall_clock.c` preloaded before the C library."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("wall_clock.c")
_AHEAD = struct.Struct("=q")
HOUR = 3600


class WallClocks:
    """The wall clocks of all processes that have this environment.

    Attributes:
        environment: the variables for these processes.
    """

    def __init__(self, directory: Path) -> None:
        """Compile the library; the test is skipped if this is not possible.

        Args:
            directory: the directory for the library and for the clocks.
        """
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            pytest.skip("there is no C compiler, with which clocks are made to jump")
        self._clocks = directory / "clocks"
        self._clocks.mkdir()
        library = directory / "wall_clock.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"], check=True)
        self.environment = {"LD_PRELOAD": str(library), "TEST_CLOCKS": str(self._clocks)}
        self._check()

    def jump(self, hours: Sequence[float]) -> None:
        """Set each clock, in turn, some hours ahead of the real time."""
        for path, ahead in zip(self._all(), cycle(hours), strict=False):
            with open(path, "r+b", buffering=0) as file:  # Never empty: the process would die of reading it.
                file.write(_AHEAD.pack(int(ahead * HOUR)))

    def of(self, pid: int) -> float:
        """Return how many hours the clock of a process is ahead."""
        return _AHEAD.unpack((self._clocks / str(pid)).read_bytes())[0] / HOUR

    def _all(self) -> list[Path]:
        return sorted(self._clocks.iterdir(), key=lambda path: int(path.name))

    def _check(self) -> None:
        """Find out whether a process sees its clock jump."""
        look = "import time\nwhile input(): print(time.time(), time.monotonic(), flush=True)"
        with subprocess.Popen(
            [sys.executable, "-c", look],
            env={**os.environ, **self.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            for hours in (0, 3, -5):
                self.jump([hours])
                process.stdin.write("look\n")
                process.stdin.flush()
                wall, monotonic = map(float, process.stdout.readline().split())
                assert abs(wall - time.time() - hours * HOUR) < HOUR / 2
                assert abs(monotonic - time.monotonic()) < HOUR / 2
            process.stdin.write("\n")
