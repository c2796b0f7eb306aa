"""Equal lines of several workers are shown once; nothing is lost, and each worker's lines keep their order."""

from __future__ import annotations

import random

import pytest

from farandole.control.agent.protocol import STDERR, STDOUT
from farandole.control.jobs.log_lines import of_rank
from farandole.control.launcher.output.alike import MANY, WAIT_SECONDS, Alike
from farandole.control.launcher.output.console import Console, OutputOptions, WorkerStream
from farandole.control.launcher.output.line_writer import LineWriter
from farandole.control.launcher.output.terminal import Look, OutputSource

TRACEBACK = ["Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "ValueError: boom"]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Shown:
    """What comes out of a stage for that many workers."""

    def __init__(self, workers: int, stream: int = STDERR) -> None:
        self.bytes = bytearray()
        self.clock = Clock()
        self.alike = Alike(LineWriter(self.bytes.extend, Look()), self.clock)
        self.sources = [OutputSource(rank, stream) for rank in range(workers)]
        for source in self.sources:
            self.alike.begin(source)

    def prints(self, rank: int, *lines: str) -> None:
        source = self.sources[rank]
        self.alike.show(source, [f"{source.prefix}{line}\n" for line in lines])
        self.alike.rest()

    @property
    def lines(self) -> list[str]:
        return self.bytes.decode().splitlines()


def test_equal_tracebacks_of_few_workers_are_shown_once() -> None:
    shown = Shown(3)
    shown.prints(0, "epoch 1", *TRACEBACK)
    shown.prints(2, *TRACEBACK[:2])
    shown.prints(1, "ValueError: mine")
    assert shown.lines == ["[0]<stderr>:epoch 1", "[1]<stderr>:ValueError: mine"]
    shown.prints(2, *TRACEBACK[2:])
    shown.clock.now = WAIT_SECONDS
    assert shown.alike.seconds_to_wait == 0.0
    shown.alike.rest()
    assert shown.lines[2:] == ["2 ranks (0, 2) printed:", *(f"    | {line}" for line in TRACEBACK)]
    assert shown.alike.seconds_to_wait is None


@pytest.mark.parametrize("stream", [STDOUT, STDERR])
def test_lines_of_many_workers_wait_for_equal_ones(stream: int) -> None:
    shown = Shown(189, stream)
    for rank in range(189):
        shown.prints(rank, "warning: old", *(["mine"] if rank == 7 else []))
    assert shown.lines == []
    shown.alike.finish()
    name = "stdout" if stream == STDOUT else "stderr"
    assert shown.lines == [
        "188 ranks (0-6, 8-188) printed:",
        "    | warning: old",
        f"[7]<{name}>:warning: old",
        f"[7]<{name}>:mine",
    ]


def test_lines_wait_no_longer_when_another_worker_prints_all_the_time() -> None:
    shown = Shown(2)
    shown.prints(0, *TRACEBACK)
    shown.clock.now = WAIT_SECONDS
    shown.alike.show(shown.sources[1], ["[1]<stderr>:x\n"])
    assert shown.lines == [*(f"[0]<stderr>:{line}" for line in TRACEBACK), "[1]<stderr>:x"]


def test_output_of_single_worker_is_unchanged() -> None:
    alone = Shown(1)
    alone.prints(0, *TRACEBACK)
    assert alone.lines == [f"[0]<stderr>:{line}" for line in TRACEBACK]
    few = Shown(MANY - 1, STDOUT)
    for rank in range(MANY - 1):
        few.prints(rank, "hello")
    assert few.lines == [f"[{rank}]<stdout>:hello" for rank in range(MANY - 1)]


def test_messages_of_launcher_keep_their_place() -> None:
    shown = Shown(2)
    shown.prints(0, *TRACEBACK)
    shown.alike.say("error: rank 0 failed first")
    assert shown.lines == [*(f"[0]<stderr>:{line}" for line in TRACEBACK), "error: rank 0 failed first"]


def test_chatty_worker_does_not_wait() -> None:
    shown = Shown(MANY, STDOUT)
    shown.prints(3, *["x" * 99] * 200)
    assert len(shown.lines) == 200


def test_bytes_count_as_written_once_they_are() -> None:
    shown = Shown(2)
    written: list[str] = []
    shown.prints(0, "x")
    shown.alike.when_shown(lambda: written.append("x"))
    shown.prints(0, *TRACEBACK)
    shown.alike.when_shown(lambda: written.append("traceback"))
    assert written == ["x"]
    shown.alike.finish()
    assert written == ["x", "traceback"]


def test_no_line_is_lost_and_lines_of_a_rank_can_be_selected() -> None:
    dice = random.Random(7)
    shown = Shown(MANY + 4, STDOUT)
    printed: dict[int, list[str]] = {rank: [] for rank in range(MANY + 4)}
    for _ in range(2000):
        rank, line = dice.randrange(MANY + 4), dice.choice(["a", "b", "c", f"{dice.random()}"])
        printed[rank].append(line)
        shown.prints(rank, line)
        shown.clock.now += dice.choice([0.0, 0.0, 0.01, 0.2])
    shown.alike.finish()
    for rank, lines in printed.items():
        assert [line.rpartition(":")[2] for line in of_rank(shown.lines, rank)] == lines


def test_console_shows_equal_lines_once() -> None:
    err = bytearray()
    console = Console(bytearray().extend, err.extend, options=OutputOptions(once=True))
    streams = [WorkerStream(console, rank, STDERR) for rank in range(2)]
    for stream in streams:
        stream.write("\n".join([*TRACEBACK, ""]).encode())
        stream.close()
    assert console.close(10)
    assert err.decode().splitlines() == ["2 ranks (0-1) printed:", *(f"    | {line}" for line in TRACEBACK)]
