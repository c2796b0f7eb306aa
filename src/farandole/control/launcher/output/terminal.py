"""What a terminal gets that a file or a pipe does not: colours, and lines at its bottom that change in place.

A progress bar is a line that ends with a carriage return, so that the next one covers it. Those of several workers
would cover each other, so each gets a row of its own at the bottom of the terminal, with the status line below them;
all other lines are written above, once, and scroll away. Nothing that workers print may move the cursor then: of their
control sequences only those for colours reach a terminal.

Everything here is pure: `Screen` returns what is to be written.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from farandole.control.agent.protocol import STDERR, STDOUT

COLOR_CHOICES = ("auto", "always", "never")

# Of the 256 colours of terminals, some with a contrast (as WCAG defines it) of 3.5 and more to black as well as to
# white, in an order in which neighbours do not look alike.
COLORS = (32, 166, 28, 163, 62, 130, 30, 132, 64, 99, 197, 66)

MOST_BARS = 8
"""Progress bars that are shown at a time; of more, it is said how many there are."""

STREAM_NAMES = {STDOUT: "stdout", STDERR: "stderr"}

# Control sequences, the longest ones first, and single control characters; the colours (`ESC [ ... m`) in a group.
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
    """How one of the launcher's two streams is to look."""

    colors: bool = False
    terminal: int | None = None
    """The number of its device, if bars and status line are to stay at the bottom of it."""
    size: Callable[[], os.terminal_size] = lambda: os.terminal_size((80, 24))
    """Tells how large the terminal is now."""


def look_of(fd: int, color: str, environment: Mapping[str, str]) -> Look:
    """Return how the stream behind a file descriptor is to look.

    Args:
        fd: of standard output or error.
        color: one of `COLOR_CHOICES`.
        environment: in which NO_COLOR and TERM may be set.
    """
    is_terminal = os.isatty(fd)
    colors = wants_color(color, environment, is_terminal)
    if not is_terminal or environment.get("TERM", "dumb") == "dumb" or _in_background(fd):
        return Look(colors)
    return Look(colors, os.fstat(fd).st_rdev, lambda: terminal_size(fd))


def wants_color(choice: str, environment: Mapping[str, str], is_terminal: bool) -> bool:
    """Return whether there are to be colours; `auto`: as NO_COLOR and FORCE_COLOR say, or a terminal can show them."""
    if choice != "auto":
        return choice == "always"
    if environment.get("NO_COLOR"):
        return False
    return bool(environment.get("FORCE_COLOR")) or (is_terminal and environment.get("TERM", "dumb") != "dumb")


def _in_background(fd: int) -> bool:
    """Return whether the shell has given the terminal to another program, over which nothing may be drawn."""
    try:
        return os.tcgetpgrp(fd) != os.getpgrp()
    except OSError:
        return False  # It is not the terminal of this session, but one that another program has made.


def terminal_size(fd: int) -> os.terminal_size:
    """Return how large the terminal behind a file descriptor is now, or what most are."""
    try:
        columns, lines = os.get_terminal_size(fd)
    except OSError:
        columns, lines = 0, 0
    return os.terminal_size((columns or 80, lines or 24))  # A terminal without a window says 0.


class Source(NamedTuple):
    """One stream of one worker."""

    rank: int
    stream: int

    @property
    def prefix(self) -> str:
        """What stands before its lines."""
        return f"[{self.rank}]<{STREAM_NAMES[self.stream]}>:"

    def painted(self, line: str) -> str:
        """Return a line of its own with the prefix in the rank's colour, which is the same in every job."""
        color = COLORS[self.rank % len(COLORS)]
        return line.replace(self.prefix, f"\x1b[38;5;{color}m{self.prefix}\x1b[39m", 1)


def harmless(text: str) -> str:
    """Return a line without what would do anything but show it; colours stay, and end with the line.

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
    """Return a line of text and colours that takes at most so many columns, with … at the end if it was longer.

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
    """The bottom of a terminal: progress bars by rank, then the status line. All its methods return what to write.

    Between two calls the cursor stands at the end of the last of these rows.
    """

    def __init__(self, size: Callable[[], os.terminal_size], colors: bool) -> None:
        self._size = size
        self._colors = colors
        self._bars: dict[Source, str] = {}
        self._status: Callable[[int], str] | None = None
        self._rows = 0
        """How many are on the terminal now."""
        self._changed = False

    def take(self, source: Source, lines: Sequence[str]) -> str:
        """Take a worker's lines: what ends with a newline is written above, what ends with a return is its bar.

        A bar that changes is only drawn by `refresh`, so that a writer that is slower than the bars skips some states.
        """
        above = ""
        for line in lines:
            if line == "\n":  # It belongs to the return before: that was no bar, but a line.
                above += self._ended(source)
            elif line.endswith("\n"):
                self._bars.pop(source, None)
                above += f"{self._shown(source, line)}\n"
            else:
                self._set_bar(source, line)
        return self.above(above) if above else ""

    def end(self, source: Source) -> str:
        """Let the bar of a stream that is over become an ordinary line."""
        ended = self._ended(source)
        return self.above(ended) if ended else ""

    def above(self, text: str) -> str:
        """Write whole lines above the bottom rows."""
        return self._erased() + text + self._drawn()

    def show_status(self, status: Callable[[int], str] | None) -> None:
        """Change the status line: a function from the columns there are to a text, or None for none."""
        self._status = status
        self._changed = True

    def refresh(self) -> str:
        """Draw what has changed."""
        return self._erased() + self._drawn() if self._changed else ""

    def finish(self) -> str:
        """Remove the status line, and let the bars become ordinary lines."""
        self._status = None
        bars = "".join(f"{text}\n" for _, text in sorted(self._bars.items()))
        self._bars.clear()
        return self._erased() + bars

    def _shown(self, source: Source, line: str) -> str:
        text = harmless(line.rstrip(_ENDS))
        return source.painted(text) if self._colors else text

    def _set_bar(self, source: Source, line: str) -> None:
        self._changed = True
        # Blanks cover the bar before: that is how programs remove one.
        if harmless(line).partition(source.prefix)[2].strip():
            self._bars[source] = self._shown(source, line).replace("\t", " ")
        else:
            self._bars.pop(source, None)

    def _ended(self, source: Source) -> str:
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
        # One column stays free: a full line would wrap.
        return "\n".join(cut(row, columns - 1) for row in rows)

    def _bar_rows(self, most: int) -> list[str]:
        bars = [text for _, text in sorted(self._bars.items())]
        if len(bars) <= max(most, 1):
            return bars
        shown = max(most - 1, 0)
        return [*bars[:shown], f"… and {len(bars) - shown} more progress bars"]
