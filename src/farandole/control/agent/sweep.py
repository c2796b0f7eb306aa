"""Kills processes that a dead agent has left behind: those with a mark in their environment, such as a job's id.

`python -m farandole.control.agent.sweep` reads the mark, `NAME=value`, from standard input.
"""

from __future__ import annotations

import signal
import sys
import time

from farandole.control.agent.process_tree import carrying, send

SECONDS = 5.0


def sweep_step(mark: str) -> list[int]:
    """Send SIGKILL to all processes on this machine with this variable, `NAME=value`, and return their ids."""
    left = carrying(mark)
    send(left, signal.SIGKILL)
    return left


def main() -> None:
    """Sweep until nothing is left, or a time limit is reached."""
    mark = sys.stdin.read().strip()
    deadline = time.monotonic() + SECONDS
    while mark and sweep_step(mark) and time.monotonic() < deadline:
        time.sleep(0.02)


if __name__ == "__main__":
    main()
