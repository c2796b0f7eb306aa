"""The `farandole` command, which also writes its peak of memory, in KB, into `BENCHMARK_FOLDER`.

    python -m benchmarks.launcher_memory run -np 2 true

The command measures itself: what the kernel reports to its parent may be the parent's own memory before the exec.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from farandole.control.cli.main import main

NOTE = "launcher_memory"


def peak_memory() -> int:
    """Return this process's peak of resident memory, in KB."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    code = main()
    (Path(os.environ["BENCHMARK_FOLDER"]) / NOTE).write_text(str(peak_memory()))
    sys.exit(code)
