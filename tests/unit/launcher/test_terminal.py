"""Colours, and the terminal while several workers draw progress bars."""

from __future__ import annotations

import os

import pytest
from screens import FakeTerminal

from farandole.control.agent.protocol import STDERR, STDOUT
from farandole.control.launcher.output.console import Console, WorkerStream
from farandole.control.launcher.output.lines import LineSplitter
from farandole.control.launcher.output.terminal import (
    COLORS,
    MOST_BARS,
    Look,
    OutputSource,
    Screen,
    cut,
    harmless,
    look_of,
    wants_color,
)


class Desk:
    """A screen, the terminal that it draws on, and workers that print."""

    def __init__(self, columns: int = 40, lines: int = 24, colors: bool = False) -> None:
        self.terminal = FakeTerminal(columns)
        self.screen = Screen(lambda: os.terminal_size((columns, lines)), colors)
        self._splitters: dict[OutputSource, LineSplitter] = {}

    def prints(self, rank: int, data: bytes, stream: int = STDERR) -> list[str]:
        source = OutputSource(rank, stream)
        splitter = self._splitters.setdefault(source, LineSplitter(source.prefix))
        self.terminal.feed(self.screen.take(source, splitter.feed(data)))
        self.terminal.feed(self.screen.refresh())
        return self.terminal.rows

    def status(self, text: str | None) -> list[str]:
        self.screen.show_status(None if text is None else lambda columns: text[:columns])
        self.terminal.feed(self.screen.refresh())
        return self.terminal.rows

    def feed(self, text: str) -> list[str]:
        self.terminal.feed(text)
        return self.terminal.rows


def test_bars_of_two_ranks_have_a_row_each() -> None:
    desk = Desk()
    desk.prints(1, b"\r 10% of a long bar\r")
    assert desk.prints(0, b"\r 5%\r") == ["[0]<stderr>: 5%", "[1]<stderr>: 10% of a long bar"]
    assert desk.prints(1, b" 20%\r") == ["[0]<stderr>: 5%", "[1]<stderr>: 20%"]
    assert desk.prints(1, b" 99%\r100%\n") == ["[1]<stderr>:100%", "[0]<stderr>: 5%"]
    assert desk.prints(0, b"loss 3\n") == ["[1]<stderr>:100%", "[0]<stderr>:loss 3"]


def test_lines_are_written_above_bars_and_status() -> None:
    desk = Desk()
    desk.status("2/2 up")
    desk.prints(0, b"epoch 1\n", STDOUT)
    desk.prints(1, b" 10%\r")
    expected = ["[0]<stdout>:epoch 1", "[1]<stderr>: 10%", "2/2 up"]
    assert desk.terminal.rows == expected
    assert desk.feed(desk.screen.above("note: a word\n")) == [expected[0], "note: a word", *expected[1:]]
    assert desk.status("1/2 up")[-1] == "1/2 up"
    assert desk.feed(desk.screen.finish()) == ["[0]<stdout>:epoch 1", "note: a word", "[1]<stderr>: 10%"]
    assert desk.feed("prompt$") == ["[0]<stdout>:epoch 1", "note: a word", "[1]<stderr>: 10%", "prompt$"]


def test_removed_status_line_leaves_nothing() -> None:
    desk = Desk()
    desk.status("2/2 up")
    assert desk.status(None) == []
    assert desk.feed(desk.screen.finish()) == []


def test_bars_are_removed() -> None:
    desk = Desk()
    desk.prints(0, b" 10%\r")
    assert desk.prints(0, b"          \r") == []  # As tqdm does it with leave=False.
    desk.prints(0, b" 20%\r")
    assert desk.feed(desk.screen.end(OutputSource(0, STDERR))) == ["[0]<stderr>: 20%"]
    assert desk.screen.end(OutputSource(0, STDERR)) == ""


def test_crlf_split_between_pieces_is_one_line_end() -> None:
    desk = Desk()
    desk.prints(0, b"one\r")
    assert desk.prints(0, b"\ntwo\r\n") == ["[0]<stderr>:one", "[0]<stderr>:two"]


def test_a_bar_wider_than_the_terminal_is_cut() -> None:
    desk = Desk(columns=30)
    desk.prints(0, "█".encode() * 100 + b"\r")
    assert desk.prints(0, "█".encode() * 99 + b"\r") == [f"[0]<stderr>:{'█' * 16}…"]
    assert desk.prints(0, b"x" * 40 + b"\n") == ["[0]<stderr>:" + "x" * 18, "x" * 22]


def test_surplus_bars_are_counted() -> None:
    desk = Desk()
    for rank in range(20):
        desk.prints(rank, b" 10%\r")
    rows = desk.status("20/20 up")
    assert len(rows) == MOST_BARS + 1
    assert rows[:2] == ["[0]<stderr>: 10%", "[1]<stderr>: 10%"]
    assert rows[-2:] == ["… and 13 more progress bars", "20/20 up"]
    small = Desk(lines=5)
    for rank in range(20):
        rows = small.prints(rank, b" 10%\r")
    assert rows == ["[0]<stderr>: 10%", "… and 19 more progress bars"]


def test_nested_bars_that_move_the_cursor_do_no_harm() -> None:
    desk = Desk()
    desk.status("1/1 up")
    desk.prints(0, b"\r outer 1\r")
    rows = desk.prints(0, b"\n\r inner 5\x1b[A\r outer 2\r")
    assert rows == ["[0]<stderr>: outer 1", "[0]<stderr>: outer 2", "1/1 up"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext", "plain\ttext"),
        ("\x1b[1;31mred", "\x1b[1;31mred\x1b[0m"),
        ("a\x1b[2Jb\x1b[Ac\x1b[10;20Hd\x1b[?25le", "abcde"),
        ("\x1b]0;title\x07x\x1b]8;;http://a\x1b\\y\x1bP1$r\x1b\\z", "xyz"),
        ("a\x1bMb\x1bcc\x1b(Bd\x1b", "abcd"),
        ("bell\a back\b\v\f\x00\x7f\x85\x9b2J", "bell back"),
        ("cut \x1b[3", "cut "),
        ("grüße 🎉", "grüße 🎉"),
    ],
)
def test_only_colours_reach_a_terminal(text: str, shown: str) -> None:
    assert harmless(text) == shown


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("世界世界", 6, "世界…"),
        ("e\u0301te\u0301", 3, "e\u0301te\u0301"),
        ("\x1b[31mlonger\x1b[39m", 5, "\x1b[31mlong…\x1b[0m"),
        ("x", 0, ""),
    ],
)
def test_cut(text: str, columns: int, shown: str) -> None:
    assert cut(text, columns) == shown


# --- colours -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "environment", "is_terminal", "wanted"),
    [
        ("auto", {"TERM": "xterm"}, True, True),
        ("auto", {"TERM": "xterm"}, False, False),
        ("auto", {"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ("auto", {"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {}, True, False),
        ("always", {"NO_COLOR": "1", "TERM": "dumb"}, False, True),
        ("never", {"TERM": "xterm"}, True, False),
    ],
)
def test_colours_depend_on_environment(
    choice: str, environment: dict[str, str], is_terminal: bool, wanted: bool
) -> None:
    assert wants_color(choice, environment, is_terminal) == wanted


def test_pipes_and_dumb_terminals_have_no_bottom_rows() -> None:
    read_end, write_end = os.pipe()
    leader, follower = os.openpty()
    assert look_of(write_end, "always", {"TERM": "xterm"}) == Look(colors=True)
    assert look_of(follower, "auto", {"TERM": "dumb"}) == Look()
    look = look_of(follower, "auto", {"TERM": "xterm"})
    assert look.colors and look.terminal == os.fstat(follower).st_rdev
    assert look.size() == os.terminal_size((80, 24))  # This one has no window.
    for fd in (read_end, write_end, leader, follower):
        os.close(fd)


def luminance(number: int) -> float:
    """Return the luminance of a colour of the 6x6x6 cube, as WCAG 2.1 defines it."""
    index = number - 16
    levels = [(0, 95, 135, 175, 215, 255)[digit] / 255 for digit in (index // 36, index // 6 % 6, index % 6)]
    linear = [level / 12.92 if level <= 0.03928 else ((level + 0.055) / 1.055) ** 2.4 for level in levels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("color", COLORS)
def test_colours_are_readable_on_black_and_white(color: int) -> None:
    assert (luminance(color) + 0.05) / 0.05 >= 3.5
    assert 1.05 / (luminance(color) + 0.05) >= 3.5


def test_a_rank_keeps_its_colour() -> None:
    desk = Desk(colors=True)
    text = desk.screen.take(OutputSource(3, STDOUT), ["[3]<stdout>:hello\n"])
    assert text == "\x1b[38;5;163m[3]<stdout>:\x1b[39mhello\n"
    assert OutputSource(15, STDOUT).painted("[15]<stdout>:").startswith("\x1b[38;5;163m")
    assert len(set(COLORS)) == len(COLORS)


# --- on the console ------------------------------------------------------------------------------------------------


def test_two_streams_on_one_terminal_have_one_writer() -> None:
    written = bytearray()
    look = Look(terminal=7)
    console = Console(lambda data: pytest.fail("two writers"), written.extend, out_look=look, err_look=look)
    assert console.has_status
    streams = [WorkerStream(console, rank, stream) for rank in range(2) for stream in (STDOUT, STDERR)]
    console.show_status(lambda columns: "2/2 up")
    for number, stream in enumerate(streams):
        stream.write(b"line %d\n bar %d\r" % (number, number))
    for stream in streams:
        stream.close()
    console.say("farandole says")
    assert console.close(10)
    terminal = FakeTerminal()
    terminal.feed(written.decode())
    assert terminal.rows[:4] == [
        "[0]<stdout>:line 0",
        "[0]<stderr>:line 1",
        "[1]<stdout>:line 2",
        "[1]<stderr>:line 3",
    ]
    assert sorted(terminal.rows[4:8]) == [
        "[0]<stderr>: bar 1",
        "[0]<stdout>: bar 0",
        "[1]<stderr>: bar 3",
        "[1]<stdout>: bar 2",
    ]
    assert terminal.rows[8:] == ["farandole says"]


def test_a_pipe_beside_a_terminal_gets_the_bytes() -> None:
    out, err = bytearray(), bytearray()
    console = Console(out.extend, err.extend, err_look=Look(colors=True, terminal=7))
    stream = WorkerStream(console, 0, STDOUT)
    stream.write(b" 10%\r 20%\r\x1b[A\x1b[31m!\n")
    stream.close()
    assert console.close(10)
    assert bytes(out) == b"[0]<stdout>: 10%\r[0]<stdout>: 20%\r[0]<stdout>:\x1b[A\x1b[31m!\n"
    assert bytes(err) == b""
