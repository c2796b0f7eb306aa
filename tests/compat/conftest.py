"""What the tests of Horovod's names share: the command horovodrun as a process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import drop_in
import pytest


@pytest.fixture
def horovodrun(tmp_path: Path) -> Callable[..., drop_in.Ran]:
    """Return a function that runs horovodrun to its end, in an empty folder."""

    def run(*arguments: str, script: str | None = None, env: Mapping[str, str] | None = None) -> drop_in.Ran:
        command = [sys.executable, "-m", "horovod.runner.launch", *arguments]
        if script is not None:
            (tmp_path / "script.py").write_text(textwrap.dedent(script))
            command += [sys.executable, "script.py"]
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=drop_in.environment(**(env or {})),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run
