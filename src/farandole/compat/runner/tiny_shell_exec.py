"""`horovod.runner.common.util.tiny_shell_exec`: a short shell command and what it says."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping


def execute(command: str, env: Mapping[str, str]) -> tuple[str, int] | None:
    """Run a shell command in that environment.

    Returns:
        All that it printed, and its exit code; None if there is no shell to run it.
    """
    try:
        done = subprocess.run(
            command,
            shell=True,
            env=dict(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout, done.returncode
