"""The user's key and the meeting file, in a home of their own."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from farandole.errors import StartError
from farandole.worker.core import user_files
from farandole.worker.core.user_files import MeetingFile, job_secret


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_job_has_one_secret_and_every_job_another(home: Path) -> None:
    assert job_secret("a") == job_secret("a") != job_secret("b")
    assert len(job_secret("a")) == 32
    key = home / ".config" / "farandole" / "key"
    assert mode(key) == 0o600 and mode(key.parent) == 0o700
    assert [path.name for path in key.parent.iterdir()] == ["key"]


def test_another_user_has_other_secrets(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = job_secret("a")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "elsewhere"))
    assert job_secret("a") != mine


def test_workers_that_need_a_key_at_once_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: False)  # All of them find none.
    with ThreadPoolExecutor(16) as pool:
        secrets = list(pool.map(lambda _: job_secret("a"), range(64)))
    assert len(set(secrets)) == 1


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda key: key.chmod(0o640), "chmod 600"),
        (lambda key: key.write_bytes(b"short"), "does not hold a key"),
        (lambda key: (key.unlink(), key.mkdir()), "cannot be read or made"),
    ],
)
def test_a_key_that_is_no_secret_is_not_used(home: Path, spoil: object, told: str) -> None:
    assert callable(spoil)
    job_secret("a")
    spoil(home / ".config" / "farandole" / "key")
    with pytest.raises(StartError, match=told) as caught:
        job_secret("a")
    assert "FARANDOLE_SECRET" in str(caught.value)


def test_a_home_that_cannot_be_written_is_told(home: Path) -> None:
    (home / ".config").write_text("a file")
    with pytest.raises(StartError, match="FARANDOLE_SECRET"):
        job_secret("a")


def test_a_meeting_file_is_the_users_alone_and_the_jobs(home: Path) -> None:
    file = MeetingFile("a")
    assert file.read() == ""
    file.write("10.0.0.1:1")
    assert MeetingFile("a").read() == "10.0.0.1:1"
    assert MeetingFile("b").read() == ""
    assert file.path.parent == home / ".cache" / "farandole" / "meet"
    assert mode(file.path) == 0o600 and mode(file.path.parent) == 0o700
    file.write("10.0.0.2:2")
    assert MeetingFile("a").read() == "10.0.0.2:2"
    file.remove()
    file.remove()
    assert list(file.path.parent.iterdir()) == []


def test_meeting_files_go_where_caches_go(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "caches"))
    assert MeetingFile("a").path.is_relative_to(home / "caches")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/from/the/root")
    assert MeetingFile("a").path.is_relative_to(home / ".cache")


def test_a_file_of_rubbish_says_nothing() -> None:
    file = MeetingFile("a")
    file.write("")
    file.path.write_bytes(b"\xff\xfe")
    assert file.read() == ""


def test_a_cache_that_cannot_be_written_is_told(home: Path) -> None:
    (home / ".cache").write_text("a file")
    with pytest.raises(StartError, match="FARANDOLE_ROSTER"):
        MeetingFile("a").write("10.0.0.1:1")


def test_nothing_is_written_under_a_name_that_can_be_guessed(home: Path) -> None:
    drafts = {user_files._write_beside(home / "x", b"").name for _ in range(2)}
    assert len(drafts) == 2 and all(os.path.exists(home / name) for name in drafts)
