"""Switching the destination of output at any moment."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from farandole.control.agent.protocol import STDERR, STDOUT
from farandole.control.launcher.daemon.log_file import LogFile
from farandole.control.launcher.daemon.output_sink import (
    OutputSink,
    SeverableWriter,
    let_writes_be_interrupted,
    open_sinks,
)
from farandole.control.launcher.daemon.recent_lines import RecentLines
from farandole.control.launcher.daemon.switched_line_writer import SwitchedLineWriter
from farandole.control.launcher.output.console import Console, WorkerStream
from farandole.control.launcher.output.line_writer import LineWriter
from farandole.control.launcher.output.terminal import Look, OutputSource

SOURCE = OutputSource(0, STDOUT)


@pytest.fixture
def unread_pipe() -> Iterator[int]:
    reading, writing = os.pipe()
    os.close(reading)
    let_writes_be_interrupted()
    yield writing
    os.close(writing)


class Shown:
    """A console with a log, whose sinks change."""

    def __init__(self, unread_pipe: int) -> None:
        self._unread_pipe = unread_pipe
        self.recent = RecentLines()
        self.log = bytearray()
        self.lost: list[OutputSink] = []
        self.left: list[OutputSink] = []
        log = OutputSink(LineWriter(self.log.extend, Look()), (STDOUT, STDERR))
        self.sides = {
            stream: SwitchedLineWriter(stream, log, self.recent, self.lost.append) for stream in (STDOUT, STDERR)
        }
        self.console = Console(self.sides[STDOUT], self.sides[STDERR])
        self.worker = WorkerStream(self.console, 0, STDOUT)

    def switch_to(self, out: int, err: int, since: int = 0) -> dict[int, OutputSink]:
        sinks = open_sinks([out, err], [Look(), Look()], self._unread_pipe, since, self.left.append)
        self._turn(sinks)
        return sinks

    def turn_to_log(self) -> None:
        self._turn({})

    def _turn(self, sinks: dict[int, OutputSink]) -> None:
        for stream, side in self.sides.items():
            side.switch_to(sinks.get(stream))
            self.console.submit(stream, lambda line_writer: None)


def files(directory: Path, name: str) -> tuple[Path, list[int]]:
    path = directory / name
    return path, [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for _ in range(2)]


def test_lines_follow_the_sink(tmp_path: Path, unread_pipe: int) -> None:
    shown = Shown(unread_pipe)
    shown.worker.write(b"one\n")
    until(lambda: shown.recent.count == 1, "it is written")
    first, descriptors = files(tmp_path, "first")
    shown.switch_to(*descriptors)
    until(lambda: first.exists() and "one" in first.read_text(), "it is caught up on")
    shown.console.say("two")
    until(lambda: shown.recent.count == 2, "it is written")
    shown.turn_to_log()
    until(lambda: len(shown.left) == 2, "both threads have left")
    shown.worker.write(b"three\n")
    until(lambda: shown.recent.count == 3, "it is written")
    second, descriptors = files(tmp_path, "second")
    shown.switch_to(*descriptors, since=2)
    shown.worker.close()
    assert shown.console.close(20)
    assert bytes(shown.log) == b"[0]<stdout>:one\n[0]<stdout>:three\n"
    assert first.read_text() == "[0]<stdout>:one\ntwo\n"
    assert second.read_text() == "[0]<stdout>:three\n"
    assert shown.lost == [] and len(shown.left) == 4


def test_lines_that_cannot_be_written_go_to_log(unread_pipe: int) -> None:
    shown = Shown(unread_pipe)
    reading, writing = os.pipe()
    sinks = shown.switch_to(writing, os.open(os.devnull, os.O_WRONLY))
    os.close(reading)
    shown.worker.write(b"lost\n")
    until(lambda: bytes(shown.log) == b"[0]<stdout>:lost\n", "the log has it")
    until(lambda: shown.lost == [sinks[STDOUT]], "it is told")
    assert shown.console.close(20)


def test_blocked_write_is_interrupted_without_loss(unread_pipe: int) -> None:
    shown = Shown(unread_pipe)
    reading, writing = os.pipe()
    sinks = shown.switch_to(writing, os.open(os.devnull, os.O_WRONLY))
    data = b"".join(b"%07d\n" % number for number in range(20_000))
    shown.worker.write(data)
    shown.worker.write(b"last\n")
    until(lambda: len(os.read(reading, 1)) == 1, "the pipe fills up")
    shown.turn_to_log()
    for sink in sinks.values():
        sink.sever()
    until(lambda: shown.log.endswith(b"last\n"), "it goes on")
    assert shown.log.count(b"[0]<stdout>:") == 20_001
    assert shown.console.close(20)
    os.close(reading)


def test_unused_sink_is_closed_as_well(tmp_path: Path, unread_pipe: int) -> None:
    shown = Shown(unread_pipe)
    busy = threading.Event()
    for stream in (STDOUT, STDERR):
        shown.console.submit(stream, lambda line_writer: busy.wait(20) and None)
    _, first = files(tmp_path, "first")
    shown.switch_to(*first)
    second, descriptors = files(tmp_path, "second")
    shown.switch_to(*descriptors)
    busy.set()
    shown.console.say("hello")
    until(lambda: len(shown.left) == 2, "the first is left")
    for descriptor in first:
        with pytest.raises(OSError):
            os.fstat(descriptor)
    assert shown.console.close(20)
    assert second.read_text() == "hello\n"


def test_severing_after_closing_has_no_effect(unread_pipe: int) -> None:
    reading, writing = os.pipe()
    writer = SeverableWriter(writing, unread_pipe)
    writer.close()
    other = os.open(os.devnull, os.O_RDONLY)  # Very likely the same number.
    writer.sever()
    assert os.read(other, 1) == b""
    os.close(other)
    os.close(reading)


def test_only_the_last_lines_are_recalled() -> None:
    recent = RecentLines(most=3)
    recent.add(STDOUT, SOURCE, [f"{number}\n" for number in range(5)])
    recent.add(STDERR, None, ["said"])
    assert [line.text for line in recent.since(0, (STDOUT, STDERR))] == ["3\n", "4\n", "said"]
    assert [line.text for line in recent.since(5, (STDOUT, STDERR))] == ["said"]
    assert [line.text for line in recent.since(0, (STDOUT,))] == ["3\n", "4\n"]
    assert recent.count == 6


def test_last_state_of_progress_bar_is_recalled() -> None:
    recent = RecentLines()
    recent.add(STDOUT, SOURCE, ["[0]<stdout>: 10%\r", "[0]<stdout>: 99%\r"])
    assert recent.since(0, (STDOUT,)) == []
    recent.add(STDOUT, SOURCE, ["\n"])
    assert [line.text for line in recent.since(0, (STDOUT,))] == ["[0]<stdout>: 99%\n"]


def test_log_is_rotated_once(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "output.log", limit=10)
    for text in (b"12345\n", b"6789\n", b"abcdefghijklmnop\n", b"end\n"):
        log(text)
    assert (tmp_path / "output.log").read_bytes() == b"end\n"
    assert (tmp_path / "output.log.1").read_bytes() == b"abcdefghijklmnop\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output.log", "output.log.1"]
    os.close(log.fileno())


def test_log_on_full_disk_raises_nothing() -> None:
    log = LogFile(Path("/dev/full"))
    log(b"text\n")
    os.close(log.fileno())
