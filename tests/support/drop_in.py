"""The package `horovod` and the command horovodrun, used from the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "compat" / "horovod" / "src"

Ran = subprocess.CompletedProcess[str]


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without a job's variables, with the package `horovod` on the path."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "FARANDOLE_"))}
    if library := os.environ.get("FARANDOLE_LIBRARY"):
        clean["FARANDOLE_LIBRARY"] = library
    path = os.pathsep.join([str(PACKAGE), *filter(None, [clean.get("PYTHONPATH")])])
    return {**clean, "PYTHONPATH": path, **variables}


def python(code: str, *options: str, check: bool = True, **variables: str) -> Ran:
    """Run Python code in a separate process; warnings are errors."""
    command = [sys.executable, "-W", "error", *options, "-c", textwrap.dedent(code)]
    done = subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0 or not check, done.stderr
    return done
