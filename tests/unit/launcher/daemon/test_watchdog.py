"""The watchdog, without memory for another process, and when the daemon ends while it prepares."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from farandole.control.launcher.daemon import client, watchdog
from farandole.control.launcher.daemon.watchdog import run_watched


class Kernel:
    """Has no room for a number of forks; then, each fork looks as in the new process."""

    def __init__(self, failures: float) -> None:
        self.failures = failures

    def fork(self) -> int:
        self.failures -= 1
        if self.failures >= 0:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return 0


def watched() -> list[bool]:
    """Return what daemons were told, in whose process the watchdog returned."""
    told: list[bool] = []
    run_watched(told.append, lambda: None, lambda: None, lambda: True)
    return told


def test_fork_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", Kernel(3).fork)
    assert watched() == [False]


def test_fork_is_given_up_after_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", Kernel(float("inf")).fork)
    monkeypatch.setattr(watchdog, "FORK_SECONDS", 0.2)
    with pytest.raises(BlockingIOError):
        watched()


def test_client_waits_longer_than_watchdog() -> None:
    assert watchdog.FORK_SECONDS < client._FOLLOW_SECONDS


PREPARING = """
import os, signal, sys, time
from farandole.control.launcher.daemon import watchdog

watchdog.BEGIN_SECONDS = 0.0
begun, how = os.pipe(), sys.argv[1]
asked = []

def prepare():
    os.write(begun[1], b"x")
    time.sleep(60.0 if how == "ends" else 0.2)  # An import on a busy machine, which cannot be waited for otherwise.
    asked.append("prepared")

def keep(follows):
    if follows:
        sys.exit(5 if asked else 6)
    os.read(begun[0], 1)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)

watchdog.run_watched(keep, lambda: None, prepare, lambda: True)
sys.exit(3)
"""


@pytest.mark.parametrize(("how", "code"), [("ends", 3), ("killed", 5)])
def test_end_of_job_is_not_delayed_by_preparation(how: str, code: int) -> None:
    """The client waits for the watchdog. One that is killed is followed when all is prepared."""
    assert subprocess.run([sys.executable, "-c", PREPARING, how], timeout=40, check=False).returncode == code
