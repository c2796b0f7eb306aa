"""The failover files on disks that are full or read-only."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from farandole.control.launcher.supervise.failover_files import LAUNCHER, STATE, FailoverFiles


def test_failover_files_are_whole_once_all_exist(tmp_path: Path) -> None:
    failover_files = FailoverFiles(tmp_path)
    assert failover_files.save(LAUNCHER, b"hosts") and not failover_files.is_whole()
    assert failover_files.save(STATE, b"world") and failover_files.is_whole()
    assert (failover_files.left(LAUNCHER), failover_files.left(STATE)) == (b"hosts", b"world")
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    failover_files.clear()
    assert not failover_files.is_whole() and list(tmp_path.iterdir()) == []
    failover_files.clear()


def test_outdated_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failover_files = FailoverFiles(tmp_path)
    failover_files.save(LAUNCHER, b"then")
    monkeypatch.setattr(Path, "replace", fails_with(errno.ENOSPC))
    assert not failover_files.save(LAUNCHER, b"now")
    assert failover_files.left(LAUNCHER) is None


def test_read_only_disk_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failover_files = FailoverFiles(tmp_path)
    failover_files.save(LAUNCHER, b"then")
    monkeypatch.setattr(Path, "replace", fails_with(errno.EROFS))
    monkeypatch.setattr(Path, "unlink", fails_with(errno.EROFS))
    assert not failover_files.save(LAUNCHER, b"now")
    failover_files.clear()


def fails_with(number: int) -> object:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, "as the test wants it")

    return fail
