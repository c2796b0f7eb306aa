"""The guard, where there is no room for another process."""

from __future__ import annotations

import errno
import os

import pytest

from farandole.launcher.keeper import front
from farandole.launcher.keeper import guard as guard_module
from farandole.launcher.keeper.guard import guard


class Kernel:
    """Has no room for so many forks; then, each is as it looks in the new process."""

    def __init__(self, failures: float) -> None:
        self.failures = failures

    def fork(self) -> int:
        self.failures -= 1
        if self.failures >= 0:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return 0


def kept() -> list[bool]:
    """Return what keepers were told, in whose process the guard returned."""
    told: list[bool] = []
    guard(told.append, lambda: None, lambda: None, lambda: True)
    return told


def test_it_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", Kernel(3).fork)
    assert kept() == [False]


def test_it_does_not_try_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", Kernel(float("inf")).fork)
    monkeypatch.setattr(guard_module, "FORK_SECONDS", 0.2)
    with pytest.raises(BlockingIOError):
        kept()


def test_a_front_still_waits_when_the_guard_gives_up() -> None:
    assert guard_module.FORK_SECONDS < front._FOLLOW_SECONDS
