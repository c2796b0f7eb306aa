"""Tables in logs, and on terminals of several widths."""

from __future__ import annotations

import io

import pytest

from farandole.base.display.tables import lines, show, wants_colour

ROWS = [
    ("name", "state", "workers", "command"),
    ("a", "Running", "1/2", "python train.py --epochs 300 --learning-rate 0.1"),
    ("b[red]", "Failed", "-", ":smile: x"),
]
PLAIN = [
    "name    state    workers  command",
    "a       Running  1/2      python train.py --epochs 300 --learning-rate 0.1",
    "b[red]  Failed   -        :smile: x",
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


def shown(stream: io.StringIO) -> list[str]:
    show(ROWS, stream=stream)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_log_has_full_table_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert lines(ROWS) == PLAIN and shown(io.StringIO()) == PLAIN


def test_numbers_end_at_the_same_place() -> None:
    assert lines([("size", "us"), ("4 B", "9"), ("16 KiB", "12")], right=(0, 1)) == [
        "  size  us",
        "   4 B   9",
        "16 KiB  12",
    ]


def test_a_terminal_gets_colours(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = "\n".join(shown(terminal))
    assert "\x1b[32mRunning" in text and "\x1b[31mFailed" in text and "b[red]" in text and ":smile:" in text


def test_without_colours_a_terminal_gets_the_same_text(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(terminal) == PLAIN


def test_colours_can_be_asked_for_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    told = shown(io.StringIO())
    assert "\x1b[32mRunning" in told[1] and told[1].endswith("--learning-rate 0.1")


def test_the_last_column_is_cut_at_the_width(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("NO_COLOR", "1")
    told = shown(terminal)
    assert told[1] == "a       Running  1/2      python train.py --epoch…"
    assert max(map(len, told)) <= 50


def test_narrow_terminal_gets_several_lines_for_each_row(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("NO_COLOR", "1")
    told = shown(terminal)
    assert told[:3] == ["name: a", "state: Running", "workers: 1/2"]
    assert told[-3:] == ["name: b[red]", "state: Failed", "command: :smile: x"]
    assert max(map(len, told)) <= 30


def test_whether_there_are_colours(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wants_colour(terminal) and not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(terminal)
