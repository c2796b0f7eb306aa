"""Prefixes, line ends, binary output, and output without a reader."""

from __future__ import annotations

import contextlib
import errno
import io
import re
import resource
import threading
from pathlib import Path

import pytest

from farandole.control.agent.protocol import STDERR, STDOUT
from farandole.control.launcher.output.console import (
    Console,
    OutputOptions,
    WorkerStream,
    open_log,
    open_worker,
    read_ranks,
    text_writer,
)
from farandole.control.launcher.output.lines import LONGEST_LINE, LineSplitter
from farandole.control.launcher.output.logs import begin_attempt, rank_folder
from farandole.control.launcher.output.terminal import Look
from farandole.errors import SpecError

P = "[3]<stdout>:"


def split(*chunks: bytes) -> str:
    splitter = LineSplitter(P)
    return "".join([*(line for chunk in chunks for line in splitter.feed(chunk)), *splitter.flush()])


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
def test_lines_get_prefix_and_keep_line_ends(data: bytes, expected: str) -> None:
    assert split(data) == expected


@pytest.mark.parametrize(("data", "expected"), CASES)
def test_cutting_the_stream_byte_by_byte_changes_nothing(data: bytes, expected: str) -> None:
    assert split(*(data[i : i + 1] for i in range(len(data)))) == expected


def test_complete_line_is_not_delayed() -> None:
    splitter = LineSplitter(P)
    assert splitter.feed(b"half") == []
    assert splitter.feed(b" done\nnext") == [f"{P}half done\n"]
    assert splitter.feed(b" 50%\r") == [f"{P}next 50%\r"]


def test_endless_line_is_cut_between_characters() -> None:
    euro = "€".encode()
    splitter = LineSplitter("")
    lines = splitter.feed(euro * LONGEST_LINE)
    assert all(line.strip("€") == "\n" and len(line[:-1].encode()) <= LONGEST_LINE for line in lines)
    assert sum(len(line[:-1].encode()) for line in lines) >= len(euro) * LONGEST_LINE - LONGEST_LINE


def test_streams_go_to_console_and_file(tmp_path: Path) -> None:
    out, err = bytearray(), bytearray()
    console = Console(out.extend, err.extend)
    written: list[int] = []
    stream = WorkerStream(console, 0, STDOUT, file=open_log(tmp_path / "rank.0", STDOUT), written=written.append)
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
    open_log(rank_folder(tmp_path, rank, size), STDERR).close()
    assert [path.name for path in tmp_path.iterdir()] == [folder]


def test_lost_reader_is_reported_once_and_blocks_nothing() -> None:
    broken: list[bool] = []

    def writer(data: bytes) -> None:
        raise BrokenPipeError

    console = Console(writer, bytearray().extend, lambda: broken.append(True))
    written: list[int] = []
    stream = WorkerStream(console, 0, STDOUT, written=written.append)
    for _ in range(3):
        stream.write(b"x\n")
    assert console.close(10)
    assert broken == [True]
    assert written == [2, 2, 2]


def test_full_disk_loses_output_but_not_job() -> None:
    out, err = bytearray(), bytearray()
    broken: list[bool] = []
    is_full = iter([True, True, False])

    def writer(data: bytes) -> None:
        if next(is_full):
            raise OSError(errno.ENOSPC, "No space left on device")
        out.extend(data)

    console = Console(writer, err.extend, lambda: broken.append(True))
    stream = WorkerStream(console, 0, STDOUT)
    for line in (b"a\n", b"b\n", b"c\n"):
        stream.write(line)
    assert console.close(10)
    assert not broken
    assert bytes(out) == b"[0]<stdout>:c\n"
    assert bytes(err) == (
        b"warning: standard output loses lines: No space left on device\n"
        b"hint: training continues; free some space, and lines are written again\n"
    )


def test_error_of_users_stream_is_told_and_blocks_nothing() -> None:
    err = bytearray()
    console = Console(text_writer(io.BytesIO()), err.extend)
    written: list[int] = []
    stream = WorkerStream(console, 0, STDOUT, written=written.append)
    for _ in range(3):
        stream.write(b"x\n")
    assert console.close(10)
    assert written == [2, 2, 2], "the worker would wait for its output to be taken"
    assert err.startswith(b"warning: output is no longer written: TypeError: a bytes-like object is required")
    assert err.count(b"hint: ") == 1


def test_characters_that_a_stream_lacks_are_escaped() -> None:
    file = io.BytesIO()
    stream = io.TextIOWrapper(file, "ascii")
    text_writer(stream)("é is one\n".encode())
    text_writer(stream)(b"and the next line\n")
    assert file.getvalue() == b"\\xe9 is one\nand the next line\n"


def test_stalled_reader_delays_only_its_stream() -> None:
    wake = threading.Event()
    err = bytearray()
    console = Console(lambda data: wake.wait(20) and None, err.extend)
    written: list[int] = []
    WorkerStream(console, 0, STDOUT, written=written.append).write(b"stuck\n")
    done = threading.Event()
    WorkerStream(console, 0, STDERR, written=lambda count: done.set()).write(b"fine\n")
    assert done.wait(60)
    assert written == []
    assert not console.close(0.05)
    wake.set()
    assert console.close(10)


def test_full_disk_ends_file_but_not_job() -> None:
    out, err = bytearray(), bytearray()
    console = Console(out.extend, err.extend)
    stream = WorkerStream(console, 0, STDOUT, file=open("/dev/full", "wb", buffering=0))
    stream.write(b"a\n")
    stream.write(b"b\n")
    stream.close()
    assert console.close(10)
    assert bytes(out) == b"[0]<stdout>:a\n[0]<stdout>:b\n"
    assert bytes(err) == (
        b"warning: /dev/full ends here: No space left on device\n"
        b"hint: training continues; free some space, or use another --output-dir for the next run\n"
    )


def test_timestamps_precede_prefix_and_files_may_get_them(tmp_path: Path) -> None:
    out = bytearray()
    console = Console(out.extend, bytearray().extend)
    file = open_log(tmp_path / "rank.3", STDOUT)
    stream = WorkerStream(console, 3, STDOUT, file=file, prefixes_in_file=True, timestamps=True)
    stream.write(b"one\ntw")
    stream.write(b"o")
    stream.close()
    assert console.close(10)
    assert (tmp_path / "rank.3" / "stdout").read_bytes() == bytes(out)
    time_ = r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}"
    assert re.fullmatch(rf"{time_}\[3\]<stdout>:one\n{time_}\[3\]<stdout>:two\n", out.decode())


def test_hint_about_full_disk_is_given_once() -> None:
    err = bytearray()
    console = Console(bytearray().extend, err.extend)
    for rank in range(3):
        stream = WorkerStream(console, rank, STDOUT, file=open("/dev/full", "wb", buffering=0))
        stream.write(b"a\n")
        stream.close()
    assert console.close(10)
    assert (err.count(b"warning: "), err.count(b"hint: ")) == (3, 1)


# --- what is shown -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [("0", [0]), ("0,4-6", [0, 4, 5, 6]), (" 1 , 2-2 ", [1, 2]), ("none", [])],
)
def test_ranks_are_parsed(text: str, shown: list[int]) -> None:
    options = OutputOptions(only_ranks=read_ranks(text))
    assert [rank for rank in range(8) if options.shows(rank)] == shown
    options.check(8, None)


@pytest.mark.parametrize("text", ["", "x", "-1", "1-", "3-2", "0,,1", "0;1", "\u0663"])
def test_invalid_ranks_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--only-rank"):
        read_ranks(text)


def test_invalid_output_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"the job has no rank 4 \(hint: ranks go from 0 to 3"):
        OutputOptions(only_ranks=read_ranks("0,2-4")).check(4, None)
    with pytest.raises(SpecError, match=r"--tee.*--output-dir"):
        OutputOptions(tee=True).check(4, None)
    OutputOptions(tee=True).check(4, tmp_path)
    with pytest.raises(SpecError, match="--color sometimes"):
        OutputOptions(color="sometimes")


@pytest.mark.parametrize(
    ("only", "directory", "text"),
    [
        (None, None, "console"),
        (None, "logs", "console and logs/rank.*/"),
        ("0,4-7", "logs", "console (rank 0, 4-7 only) and logs/rank.*/"),
        ("none", "logs", "logs/rank.*/"),
        ("none", None, "nowhere"),
    ],
)
def test_destination_of_output_is_described(only: str | None, directory: str | None, text: str) -> None:
    assert OutputOptions(only_ranks=None if only is None else read_ranks(only)).describe(directory) == text


def test_files_get_output_that_is_not_shown(tmp_path: Path) -> None:
    out, written, streams = bytearray(), [], {}
    console = Console(out.extend, bytearray().extend, options=OutputOptions(only_ranks=read_ranks("1")))
    for number in range(2):
        folder = tmp_path / f"rank.{number}"
        streams |= open_worker(console, number, folder, lambda rank, _: lambda count: written.append((rank, count)))
    for (rank, _), stream in streams.items():
        stream.write(b"rank %d\n" % rank)
        stream.close()
    assert console.close(10)
    assert bytes(out) == b"[1]<stdout>:rank 1\n"
    assert (tmp_path / "rank.0" / "stdout").read_bytes() == b"rank 0\n"
    assert sorted(written) == [(0, 7), (0, 7), (1, 7), (1, 7)]


def test_colours_are_around_the_prefix_and_not_in_files(tmp_path: Path) -> None:
    out = bytearray()
    console = Console(out.extend, bytearray().extend, out_look=Look(colors=True))
    folder = tmp_path / "rank.0"
    streams = open_worker(console, 0, folder, lambda rank, stream: lambda count: None, prefixes_in_files=True)
    streams[0, STDOUT].write(b"[0]<stdout>: twice\n")
    for stream in streams.values():
        stream.close()
    assert console.close(10)
    assert bytes(out) == b"\x1b[38;5;32m[0]<stdout>:\x1b[39m[0]<stdout>: twice\n"
    assert (tmp_path / "rank.0" / "stdout").read_bytes() == b"[0]<stdout>:[0]<stdout>: twice\n"


# --- the output directory ------------------------------------------------------------------------------------------


def run_into(directory: Path, text: bytes, size: int = 1) -> Path | None:
    """Write what workers print into a directory, and return where the output of an earlier run is now."""
    console = Console(bytearray().extend, bytearray().extend)
    with contextlib.ExitStack() as ending:
        ending.callback(console.close, 10)
        earlier = begin_attempt(directory)
        for rank in range(size):
            folder = rank_folder(directory, rank, size)
            for stream in open_worker(console, rank, folder, lambda rank, stream: lambda count: None).values():
                ending.callback(stream.close)
                stream.write(text)
    return earlier


def test_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    logs = tmp_path / "new" / "logs"
    assert run_into(logs, b"first", 12) is None
    (logs / "notes.txt").write_text("mine")
    (logs / "rank.best").mkdir()
    assert run_into(logs, b"second") == logs / "attempt_0"
    assert run_into(logs, b"third") == logs / "attempt_1"
    assert (logs / "rank.0" / "stdout").read_bytes() == b"third"
    assert (logs / "attempt_1" / "rank.0" / "stderr").read_bytes() == b"second"
    assert (logs / "attempt_0" / "rank.11" / "stdout").read_bytes() == b"first"
    assert {path.name for path in logs.iterdir()} == {"rank.0", "attempt_0", "attempt_1", "notes.txt", "rank.best"}


@pytest.mark.parametrize(
    ("place", "hint"), [("file", "a file of this name exists"), ("file/logs", "a part of this path is a file")]
)
def test_unusable_output_directory_is_an_error(tmp_path: Path, place: str, hint: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=f"the output directory cannot be used: .*{hint}"):
        run_into(tmp_path / place, b"")


def test_limit_of_open_files_is_reported(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with pytest.raises(SpecError, match="ulimit -n"):
            run_into(tmp_path, b"", 200)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
