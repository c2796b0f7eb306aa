"""The array file: valid at every moment, bounded, and whole again when a write fails."""

from __future__ import annotations

import json
import resource
import threading
from pathlib import Path

import pytest

from farandole.base.trace.file import ArrayFile


def read_soon(path: Path) -> list[object]:
    """Read the array. A write in progress may show in halves, if it crosses a page; but not for long."""
    for _ in range(20):
        try:
            value: list[object] = json.loads(path.read_text())
            return value
        except ValueError:
            continue
    pytest.fail("the file was not valid JSON twenty times in a row")


def test_it_is_valid_after_every_write(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    file = ArrayFile(path, 1 << 20)
    assert json.loads(path.read_text()) == []
    written: list[object] = []
    for count in (1, 3, 0, 200):
        added = [{"n": len(written) + each} for each in range(count)]
        assert file.append([json.dumps(each) for each in added]) == count
        written += added
        assert json.loads(path.read_text()) == written
    file.close()
    assert json.loads(path.read_text()) == written


def test_an_older_file_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("x" * 1000)
    ArrayFile(path, 1000).close()
    assert json.loads(path.read_text()) == []


def test_a_reader_beside_the_writer_finds_an_array(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    file = ArrayFile(path, 1 << 30)
    done = threading.Event()

    def write() -> None:
        for number in range(2000):
            file.append([json.dumps({"n": number})])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    lengths = []
    while not done.is_set():
        lengths.append(len(read_soon(path)))
    writer.join()
    file.close()
    assert lengths == sorted(lengths)
    assert len(read_soon(path)) == 2000


def test_file_never_exceeds_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    file = ArrayFile(path, 1000)
    element = json.dumps("x" * 90)
    assert file.append([element] * 3, reserve=200) == 3
    assert file.append([element] * 10, reserve=200) == 5
    assert file.append([element], reserve=200) == 0
    assert file.append(['"the end"']) == 1
    file.close()
    assert json.loads(path.read_text()) == ["x" * 90] * 8 + ["the end"]
    assert path.stat().st_size <= 1000


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    file = ArrayFile(path, 1 << 20)
    assert file.append(["1", "2"]) == 2
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            file.append([json.dumps("y" * 10000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert file.append(["3"]) == 1
    file.close()
    assert json.loads(path.read_text()) == [1, 2, 3]


@pytest.mark.parametrize("path", ["/nowhere/at/all.json", "/proc/version", "/dev/full"])
def test_unwritable_path_is_reported(path: str) -> None:
    with pytest.raises(OSError):
        ArrayFile(path, 1000)
