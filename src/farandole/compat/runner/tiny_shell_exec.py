"""`horovod.runner.common.util.tiny_shell_exec`: a short shell command and its output."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping


def execute(command: str, env: Mapping[str, str]) -> tuple[str, int] | None:
    """Run a shell command in an environment.

    Returns:
        Its output and its exit code; None if there is no shell.
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
