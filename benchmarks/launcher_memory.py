"""The `farandole` command, with a note in `BENCHMARK_FOLDER` of the most memory it has held, in KB.

    python -m benchmarks.launcher_memory run -np 2 true

It notes that itself: what the kernel tells the parent of a process may be the parent's own memory before the exec.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from farandole.control.cli.main import main

NOTE = "launcher_memory"


def peak_memory() -> int:
    """Return the most memory that this process has had resident, in KB."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    code = main()
    (Path(os.environ["BENCHMARK_FOLDER"]) / NOTE).write_text(str(peak_memory()))
    sys.exit(code)
