"""Output for terminals only: colours, and rows at the bottom that change in place.

A progress bar is a line that ends with a carriage return, so that the next one overwrites it. Bars of several workers
would overwrite each other, so each gets its own row at the bottom of the terminal, with the status line below them;
all other lines are written once, above these rows, and scroll away. Workers' output must not move the cursor meanwhile,
so of its control sequences only colours reach the terminal.

Everything here is pure: `Screen` returns the text to write.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from farandole.control.agent.protocol import STDERR, STDOUT

COLOR_CHOICES = ("auto", "always", "never")

# Some of the 256 terminal colours with a contrast (as in WCAG) of at least 3.5 to both black and white, in an order in
# which neighbours look different.
COLORS = (32, 166, 28, 163, 62, 130, 30, 132, 64, 99, 197, 66)

MOST_BARS = 8
"""Maximum number of progress bars shown at a time; for the others, only their number is shown."""

STREAM_NAMES = {STDOUT: "stdout", STDERR: "stderr"}

# Control sequences, longest first, and single control characters; colours (`ESC [ ... m`) are in a group.
_CONTROLS = re.compile(
    r"(\x1b\[[0-9;:]*m)"
    r"|[\x1b][\]PX^_].*?(?:\x07|\x1b\\|$)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)
_COLOR = re.compile(r"(\x1b\[[0-9;:]*m)")
_PLAIN = "\x1b[0m"
_ENDS = "\r\n"


class Look(NamedTuple):
    """The look of one of the launcher's two streams."""

    colors: bool = False
    terminal: int | None = None
    """The device number of a terminal whose bottom rows show progress bars and the status line; None: it has none."""
    size: Callable[[], os.terminal_size] = lambda: os.terminal_size((80, 24))
    """Returns the current size of the terminal."""


def look_of(fd: int, color: str, environment: Mapping[str, str]) -> Look:
    """Return the look for the stream behind a file descriptor.

    Args:
        fd: the descriptor of standard output or error.
        color: one of `COLOR_CHOICES`.
        environment: the environment, in which NO_COLOR and TERM may be set.
    """
    is_terminal = os.isatty(fd)
    colors = wants_color(color, environment, is_terminal)
    if not is_terminal or environment.get("TERM", "dumb") == "dumb" or _in_background(fd):
        return Look(colors)
    return Look(colors, os.fstat(fd).st_rdev, lambda: terminal_size(fd))


def wants_color(choice: str, environment: Mapping[str, str], is_terminal: bool) -> bool:
    """Return whether to use colours; `auto` follows NO_COLOR and FORCE_COLOR, or else the terminal's abilities."""
    if choice != "auto":
        return choice == "always"
    if environment.get("NO_COLOR"):
        return False
    return bool(environment.get("FORCE_COLOR")) or (is_terminal and environment.get("TERM", "dumb") != "dumb")


def _in_background(fd: int) -> bool:
    """Return whether another program is in the terminal's foreground, whose output must not be overwritten."""
    try:
        return os.tcgetpgrp(fd) != os.getpgrp()
    except OSError:
        return False  # It is not this session's terminal, but another program's.


def terminal_size(fd: int) -> os.terminal_size:
    """Return the current size of the terminal behind a file descriptor, or the usual size if it is unknown."""
    try:
        columns, lines = os.get_terminal_size(fd)
    except OSError:
        columns, lines = 0, 0
    return os.terminal_size((columns or 80, lines or 24))  # A terminal without a window reports 0.


class OutputSource(NamedTuple):
    """Identifies one stream of one worker."""

    rank: int
    stream: int

    @property
    def prefix(self) -> str:
        """The prefix of its lines."""
        return f"[{self.rank}]<{STREAM_NAMES[self.stream]}>:"

    def painted(self, line: str) -> str:
        """Return one of its lines with the prefix in the rank's colour, which is the same in every job."""
        color = COLORS[self.rank % len(COLORS)]
        return line.replace(self.prefix, f"\x1b[38;5;{color}m{self.prefix}\x1b[39m", 1)


def harmless(text: str) -> str:
    """Return a line without control sequences other than colours, which end with the line.

    Example:
        >>> harmless("up\\x1b[A and \\x1b[31mred")
        'up and \\x1b[31mred\\x1b[0m'
    """
    text = _CONTROLS.sub(lambda found: found[1] or "", text)
    return text + _PLAIN if _COLOR.search(text) else text


def plain(text: str) -> str:
    """Return a line without any control sequence.

    Example:
        >>> plain("up\\x1b[A and \\x1b[31mred")
        'up and red'
    """
    return _CONTROLS.sub("", text)


def cut(text: str, columns: int) -> str:
    """Return a line of text and colours shortened to at most this many columns, with … at the end if it was longer.

    Example:
        >>> cut("six workers", 8)
        'six wor…'
    """
    if _columns(_COLOR.sub("", text)) <= columns:
        return text
    kept: list[str] = []
    room = columns - 1
    for part in _COLOR.split(text):
        if _COLOR.fullmatch(part):
            kept.append(part)
            continue
        for character in part:
            room -= _columns(character)
            if room < 0:
                break
            kept.append(character)
        if room < 0:
            break
    return "".join(kept) + "…" + (_PLAIN if _COLOR.search(text) else "") if columns > 0 else ""


def _columns(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class Screen:
    """The bottom of a terminal: progress bars by rank, then the status line. All methods return the text to write.

    Between two calls the cursor is at the end of the last of these rows.
    """

    def __init__(self, size: Callable[[], os.terminal_size], colors: bool) -> None:
        self._size = size
        self._colors = colors
        self._bars: dict[OutputSource, str] = {}
        self._status: Callable[[int], str] | None = None
        self._rows = 0
        """Number of rows that are on the terminal now."""
        self._changed = False

    def take(self, source: OutputSource, lines: Sequence[str]) -> str:
        """Accept a worker's lines: those ending with a newline are written above; one ending with a return is its bar.

        A changed bar is drawn only by `refresh`, so that a slow writer skips some states of the bars.
        """
        above = ""
        for line in lines:
            if line == "\n":  # It follows a return, which therefore ended a line, not a bar.
                above += self._ended(source)
            elif line.endswith("\n"):
                self._bars.pop(source, None)
                above += f"{self._shown(source, line)}\n"
            else:
                self._set_bar(source, line)
        return self.above(above) if above else ""

    def end(self, source: OutputSource) -> str:
        """Turn the bar of a stream that has ended into an ordinary line."""
        ended = self._ended(source)
        return self.above(ended) if ended else ""

    def above(self, text: str) -> str:
        """Write whole lines above the bottom rows."""
        return self._erased() + text + self._drawn()

    def show_status(self, status: Callable[[int], str] | None) -> None:
        """Change the status line: a function from the number of columns to a text, or None for none."""
        self._status = status
        self._changed = True

    def refresh(self) -> str:
        """Draw what has changed."""
        return self._erased() + self._drawn() if self._changed else ""

    def finish(self) -> str:
        """Remove the status line, and turn the bars into ordinary lines."""
        self._status = None
        bars = "".join(f"{text}\n" for _, text in sorted(self._bars.items()))
        self._bars.clear()
        return self._erased() + bars

    def _shown(self, source: OutputSource, line: str) -> str:
        text = harmless(line.rstrip(_ENDS))
        return source.painted(text) if self._colors else text

    def _set_bar(self, source: OutputSource, line: str) -> None:
        self._changed = True
        # Blanks overwrite the bar: that is how programs remove one.
        if harmless(line).partition(source.prefix)[2].strip():
            self._bars[source] = self._shown(source, line).replace("\t", " ")
        else:
            self._bars.pop(source, None)

    def _ended(self, source: OutputSource) -> str:
        text = self._bars.pop(source, None)
        return "" if text is None else f"{text}\n"

    def _erased(self) -> str:
        rows, self._rows = self._rows, 0
        if rows == 0:
            return ""
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "") + "\x1b[J"

    def _drawn(self) -> str:
        self._changed = False
        columns, lines = self._size()
        rows = self._bar_rows(min(MOST_BARS, lines - 3))
        if self._status is not None:
            rows.append(self._status(columns - 1))
        self._rows = len(rows)
        # One column stays free, because a full line would wrap.
        return "\n".join(cut(row, columns - 1) for row in rows)

    def _bar_rows(self, most: int) -> list[str]:
        bars = [text for _, text in sorted(self._bars.items())]
        if len(bars) <= max(most, 1):
            return bars
        shown = max(most - 1, 0)
        return [*bars[:shown], f"… and {len(bars) - shown} more progress bars"]
