"""Kills what a dead agent can no longer kill: processes that carry a job's id in their environment.

`python -m farandole.agent.sweep` reads the id from standard input.
"""

from __future__ import annotations

import signal
import sys
import time

from farandole.agent.processes import carrying, send

SECONDS = 5.0


def sweep_step(job: str) -> list[int]:
    """Send SIGKILL to what is left of a job on this machine, and return what that was."""
    left = carrying(f"FARANDOLE_JOB={job}")
    send(left, signal.SIGKILL)
    return left


def main() -> None:
    """Sweep until nothing is left, or it takes too long."""
    job = sys.stdin.read().strip()
    deadline = time.monotonic() + SECONDS
    while job and sweep_step(job) and time.monotonic() < deadline:
        time.sleep(0.02)


if __name__ == "__main__":
    main()
