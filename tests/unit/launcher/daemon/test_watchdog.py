"""The watchdog, where there is no room for another process."""

from __future__ import annotations

import errno
import os

import pytest

from farandole.launcher.daemon import client, watchdog
from farandole.launcher.daemon.watchdog import run_watched


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
