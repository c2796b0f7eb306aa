"""A host that appears and disappears repeatedly."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from launched import Training
from waiting import until

STEADY, FLAPPING = "localhost:2\n", "127.0.0.1:1\n"
# What the launcher says with --verbose: that discovery's answer has changed, and how far a host and its worker are.
HEARD = "farandole: hosts: "
IN_THE_WORLD = "3 workers go on as generation"
PHASES = (HEARD, "host 127.0.0.1 is ready", "runs on 127.0.0.1 as process", "on 127.0.0.1 has arrived", IN_THE_WORLD)
TIMES_IN_EACH_PHASE = 4


@pytest.fixture
def hosts(tmp_path: Path) -> Callable[..., str]:
    """Return a function that says which hosts there are, and returns where to read it."""

    def say(*lines: str) -> str:
        (tmp_path / "new").write_text("".join(lines))
        (tmp_path / "new").replace(tmp_path / "hosts")
        return f"file:{tmp_path}/hosts"

    return say


def agents(training: Training) -> list[int]:
    """Return the agents of a job that live."""
    found = []
    for pid in training.job.left():
        with contextlib.suppress(OSError):  # It may end while it is looked at.
            found += [pid] * (b"farandole.control.agent" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


class Flapping:
    """A job one of whose hosts comes and goes.

    Args:
        training: with all other hosts, and --verbose.
        say: writes the file of hosts.
    """

    def __init__(self, training: Training, say: Callable[..., str]) -> None:
        self._training = training
        self._say = say
        self._steady = agents(training)

    def comes(self, phase: str) -> None:
        """Let the host come, and wait until it, or its worker, is so far: by what the launcher says then."""
        before = self._training.job.said.count(phase)
        self._change(STEADY, FLAPPING)
        self._await_more(phase, before)

    def goes(self) -> None:
        """Let the host go, and wait until the launcher has heard of it."""
        self._change(STEADY)

    def is_gone(self) -> None:
        """Wait until only the agents are left that there were without it."""
        until(lambda: agents(self._training) == self._steady, "its agent is gone")

    def its_worker_is_killed(self) -> None:
        """Kill the worker that has come last, which is in the world."""
        newest = max(self._training.books.read())
        os.kill(self._training.books.pid(newest), signal.SIGKILL)
        self._training.job.says(rf"rank 2 \(worker {newest} on 127\.0\.0\.1\) was killed by SIGKILL; 2 workers go on")

    def _change(self, *lines: str) -> None:
        before = self._training.job.said.count(HEARD)
        self._say(*lines)
        self._await_more(HEARD, before)

    def _await_more(self, words: str, before: int) -> None:
        try:
            until(lambda: self._training.job.said.count(words) > before, f"the job says again: {words}")
        except pytest.fail.Exception as error:
            raise AssertionError(f"{error}; it said:\n{self._training.job.said}") from None


def test_job_survives_a_flapping_host(train: Callable[..., Training], hosts: Callable[..., str]) -> None:
    options = ("-np", "2", "--min-np", "1", "--max-np", "3", "--hosts-from", hosts(STEADY), "--verbose")
    training = train(*options, program="eager.py")
    training.await_steps(5, size=2)
    host = Flapping(training, hosts)
    for turn in range(TIMES_IN_EACH_PHASE):
        for phase in PHASES:
            if phase != HEARD:
                host.is_gone()  # Otherwise it comes back while its worker still leaves, and is not new.
            host.comes(phase)
            if phase == IN_THE_WORLD and turn % 2:
                host.its_worker_is_killed()
            host.goes()
    host.is_gone()
    training.await_steps(5, size=2)
    host.comes(IN_THE_WORLD)
    training.await_steps(5, size=3)
    assert "warning" not in training.job.said
    training.finish()
