"""The private files in which workers may write why they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.control.agent.worker_error_file import LARGEST, ErrorFiles


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ErrorFiles:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return ErrorFiles()


ABANDON = """
import os
from farandole.control.agent.worker_error_file import ErrorFiles
files = ErrorFiles()
open(files.path(0), "w").write("never read")
print(files.path(0), flush=True)
os.kill(os.getpid(), 9)
"""


def test_folder_of_killed_agent_is_removed_by_the_next(files: ErrorFiles, tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", ABANDON], stdout=subprocess.PIPE, text=True, check=False)
    abandoned = Path(killed.stdout.strip())
    assert abandoned.exists() and abandoned.is_relative_to(tmp_path)
    Path(files.path(0)).write_bytes(b"of one that lives")
    again = ErrorFiles()
    assert not abandoned.parent.exists()
    assert files.read_and_remove(0) == b"of one that lives"
    for each in (files, again):
        each.close()
    assert list(tmp_path.iterdir()) == []


def test_error_file_is_read_once(files: ErrorFiles, tmp_path: Path) -> None:
    Path(files.path(3)).write_bytes(b'{"message": "boom"}')
    assert files.read_and_remove(2) == b""
    assert files.read_and_remove(3) == b'{"message": "boom"}'
    assert files.read_and_remove(3) == b""
    Path(files.path(4)).write_bytes(b"left behind")
    files.close()
    files.close()
    assert list(tmp_path.iterdir()) == []


def test_folder_is_private(files: ErrorFiles) -> None:
    assert os.stat(os.path.dirname(files.path(0))).st_mode & 0o777 == 0o700


def test_huge_error_file_is_cut(files: ErrorFiles) -> None:
    Path(files.path(0)).write_bytes(b"x" * (LARGEST + 1))
    assert len(files.read_and_remove(0)) == LARGEST


def test_fifo_in_place_of_error_file_does_not_block_agent(files: ErrorFiles, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"of somebody else")
    os.symlink(tmp_path / "secret", files.path(0))
    os.mkfifo(files.path(1))
    os.mkdir(files.path(2))
    assert [files.read_and_remove(rank) for rank in range(3)] == [b"", b"", b""]
    files.close()


def test_missing_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with pytest.raises(OSError):
        ErrorFiles()
