"""Waiting for conditions, and finding processes that a job has left."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest


def until(fact: Callable[[], object], what: str | Callable[[], str], seconds: float = 60) -> None:
    """Wait for a condition; fail if it does not become true in time.

    Args:
        fact: a function that returns whether the condition is true.
        what: the description of the condition, or a function that returns it when the time is over.
        seconds: the time limit in seconds.
    """
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds} s in vain until {what if isinstance(what, str) else what()}")
        time.sleep(0.01)


def kill(pid: int) -> None:
    """Kill a process, and return when it has ended with all its threads: it holds no port, lock or connection then."""
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        ended = select.poll()  # select() takes no high descriptors, which a long run of tests may have.
        ended.register(process, select.POLLIN)
        if not ended.poll(30_000):
            pytest.fail(f"process {pid} does not end")
    finally:
        os.close(process)


def processes_with(variable: str) -> list[int]:
    """Return the living processes with `NAME=value` in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                environment = Path("/proc", name, "environ").read_bytes().split(b"\0")
                state = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if variable.encode() in environment and state not in "ZX":
                found.append(int(name))
    return found
