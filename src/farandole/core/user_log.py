"""What a worker says to people in its own name, on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

# Set by the agent (`farandole.agent.agent`): descriptor, device and inode of the pipe that is standard error at first.
STDERR_VARIABLE = "FARANDOLE_LAUNCHER_STDERR"


def launcher_stderr(environment: Mapping[str, str] = os.environ) -> int:
    """Return a descriptor that leads to the launcher even if standard error is redirected; -1 if there is none.

    The variable may be inherited by a process that does not have the descriptor, or has another file under its number.
    """
    try:
        fd, device, inode = map(int, environment.get(STDERR_VARIABLE, "").split(":"))
        status = os.fstat(fd)
    except (ValueError, OSError):
        return -1
    return fd if (status.st_dev, status.st_ino) == (device, inode) else -1


def tell_user(level: str, text: str, rank: int = 0) -> None:
    """Tell the user something, as the native core does.

    Args:
        level: info, warning or error.
        text: one line.
        rank: of the worker that says it.
    """
    print(f"farandole [rank {rank}] {level}: {text}", file=sys.stderr, flush=True)
