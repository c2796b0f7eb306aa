"""The watchdog, where there is no room for another process, and where the daemon ends while it prepares."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from farandole.control.launcher.daemon import client, watchdog
from farandole.control.launcher.daemon.watchdog import run_watched


class Kernel:
    """Has no room for so many forks; then, each is as it looks in the new process."""

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


def test_it_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", Kernel(3).fork)
    assert watched() == [False]


def test_it_does_not_try_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", Kernel(float("inf")).fork)
    monkeypatch.setattr(watchdog, "FORK_SECONDS", 0.2)
    with pytest.raises(BlockingIOError):
        watched()


def test_a_client_still_waits_when_the_watchdog_gives_up() -> None:
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
def test_the_end_of_a_job_is_not_held_up_while_a_successor_is_prepared(how: str, code: int) -> None:
    """The client waits for the watchdog. One that is killed is followed when all is prepared."""
    assert subprocess.run([sys.executable, "-c", PREPARING, how], timeout=40, check=False).returncode == code
