"""Prefixes, line ends, rubbish, and what happens when nobody reads."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from farandole.agent.messages import STDERR, STDOUT
from farandole.launcher.output import LONGEST_LINE, Console, LineSplitter, WorkerStream, open_log

P = "[3]<stdout>:"


def split(*chunks: bytes) -> str:
    splitter = LineSplitter(P)
    out = b"".join(splitter.feed(chunk) for chunk in chunks) + splitter.flush()
    return out.decode("utf-8", "strict")


CASES = [
    (b"one\ntwo\n", f"{P}one\n{P}two\n"),
    (b"no end", f"{P}no end\n"),
    (b"\n\nx\n", f"{P}\n{P}\n{P}x\n"),
    (b" 10%\r 20%\r", f"{P} 10%\r{P} 20%\r"),
    (b"\r 10%\r 20%\n", f"{P} 10%\r{P} 20%\n"),
    (b"dos\r\nlines\r\n\r\nx", f"{P}dos\r\n{P}lines\r\n{P}\r\n{P}x\n"),
    ("grüße 🎉\n".encode(), f"{P}grüße 🎉\n"),
    (b"\xff\xfe\x00 ok\n", f"{P}\ufffd\ufffd\x00 ok\n"),
    (b"", ""),
    (b"\r", ""),
]


@pytest.mark.parametrize(("data", "expected"), CASES)
def test_lines_get_a_prefix_and_keep_their_ends(data: bytes, expected: str) -> None:
    assert split(data) == expected


@pytest.mark.parametrize(("data", "expected"), CASES)
def test_cutting_the_stream_byte_by_byte_changes_nothing(data: bytes, expected: str) -> None:
    assert split(*(data[i : i + 1] for i in range(len(data)))) == expected


def test_a_complete_line_is_not_held_back() -> None:
    splitter = LineSplitter(P)
    assert splitter.feed(b"half") == b""
    assert splitter.feed(b" done\nnext") == f"{P}half done\n".encode()
    assert splitter.feed(b" 50%\r") == f"{P}next 50%\r".encode()


def test_a_line_without_end_is_cut_between_characters_and_not_kept() -> None:
    euro = "€".encode()
    splitter = LineSplitter("")
    out = splitter.feed(euro * LONGEST_LINE)
    assert "\ufffd" not in out.decode()
    assert all(len(line) <= LONGEST_LINE for line in out.splitlines())
    assert len(out.replace(b"\n", b"")) >= len(euro) * LONGEST_LINE - LONGEST_LINE


def test_streams_go_to_console_and_file(tmp_path: Path) -> None:
    out, err = bytearray(), bytearray()
    console = Console(out.extend, err.extend)
    written: list[int] = []
    stream = WorkerStream(console, 0, STDOUT, file=open_log(tmp_path, 0, 1, STDOUT), written=written.append)
    stream.write(b"a\nb")
    stream.close()
    console.say("farandole says")
    assert console.close(10)
    assert bytes(out) == b"[0]<stdout>:a\n[0]<stdout>:b\n"
    assert bytes(err) == b"farandole says\n"
    assert (tmp_path / "rank.0" / "stdout").read_bytes() == b"a\nb"
    assert written == [3]


@pytest.mark.parametrize(
    ("rank", "size", "folder"), [(0, 1, "rank.0"), (9, 10, "rank.9"), (7, 11, "rank.07"), (10, 100, "rank.10")]
)
def test_folders_are_padded_to_one_width(tmp_path: Path, rank: int, size: int, folder: str) -> None:
    open_log(tmp_path, rank, size, STDERR).close()
    assert [path.name for path in tmp_path.iterdir()] == [folder]


def test_a_reader_that_is_gone_is_told_once_and_blocks_nobody() -> None:
    broken: list[bool] = []

    def sink(data: bytes) -> None:
        raise BrokenPipeError

    console = Console(sink, bytearray().extend, lambda: broken.append(True))
    written: list[int] = []
    stream = WorkerStream(console, 0, STDOUT, written=written.append)
    for _ in range(3):
        stream.write(b"x\n")
    assert console.close(10)
    assert broken == [True]
    assert written == [2, 2, 2]


def test_a_reader_that_does_not_read_holds_up_only_its_stream() -> None:
    wake = threading.Event()
    err = bytearray()
    console = Console(lambda data: wake.wait(20) and None, err.extend)
    written: list[int] = []
    WorkerStream(console, 0, STDOUT, written=written.append).write(b"stuck\n")
    done = threading.Event()
    WorkerStream(console, 0, STDERR, written=lambda count: done.set()).write(b"fine\n")
    assert done.wait(10)
    assert written == []
    assert not console.close(0.05)
    wake.set()
    assert console.close(10)


def test_a_full_disk_ends_the_file_and_not_the_job() -> None:
    out, err = bytearray(), bytearray()
    console = Console(out.extend, err.extend)
    stream = WorkerStream(console, 0, STDOUT, file=open("/dev/full", "wb", buffering=0))
    stream.write(b"a\n")
    stream.write(b"b\n")
    stream.close()
    assert console.close(10)
    assert bytes(out) == b"[0]<stdout>:a\n[0]<stdout>:b\n"
    assert err.count(b"/dev/full ends here: No space left on device") == 1


def test_timestamps_stand_before_the_prefix_and_files_may_get_lines_as_shown(tmp_path: Path) -> None:
    out = bytearray()
    console = Console(out.extend, bytearray().extend)
    file = open_log(tmp_path, 3, 4, STDOUT)
    stream = WorkerStream(console, 3, STDOUT, file=file, prefixes_in_file=True, timestamps=True)
    stream.write(b"one\ntw")
    stream.write(b"o")
    stream.close()
    assert console.close(10)
    assert (tmp_path / "rank.3" / "stdout").read_bytes() == bytes(out)
    time_ = r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}"
    assert re.fullmatch(rf"{time_}\[3\]<stdout>:one\n{time_}\[3\]<stdout>:two\n", out.decode())
