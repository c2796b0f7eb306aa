"""Waiting for facts, and looking for what a job has left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest


def until(fact: Callable[[], object], what: str, seconds: float = 30) -> None:
    """Wait for a fact; fail when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds} s in vain until {what}")
        time.sleep(0.01)


def processes_with(variable: str) -> list[int]:
    """Return the living processes that carry `NAME=value` in their environment."""
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
