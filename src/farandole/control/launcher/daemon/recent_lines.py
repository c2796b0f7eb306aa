"""The latest output of a job, for clients that connect later."""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from farandole.control.agent.protocol import STDERR
from farandole.control.jobs.view import OutputLine
from farandole.control.launcher.output.terminal import OutputSource, plain

RECALLED_LINES = 200
KEPT_CHARACTERS = 1 << 20
"""Characters of output that are kept for clients that show more than the last lines."""
LINE_CHARACTERS = 64
"""Characters that each line counts in addition to its text."""
SHOWN_CHARACTERS = 2000
"""Maximum number of characters of a line that clients get."""
SHOWN_LINES = 2000
"""Maximum number of lines that clients get at a time."""


class Line(NamedTuple):
    """One line as it was shown."""

    number: int
    stream: int
    source: OutputSource | None
    """The worker that printed it; None for lines of the launcher."""
    text: str


class RecentLines:
    """The latest output of a job. Both writing threads add to it."""

    def __init__(self, most: int = RECALLED_LINES) -> None:
        self._most = most
        self._lines: collections.deque[Line] = collections.deque()
        self._characters = 0
        self._bars: dict[OutputSource, str] = {}
        """Lines that the next one may replace; see `terminal`."""
        self._lock = threading.Lock()
        self.count = 0
        """The number of lines so far."""
        self.status: Callable[[int], str] | None = None
        """Returns the status line for a number of columns, for sinks that can show one."""

    def add(self, stream: int, source: OutputSource | None, texts: Iterable[str]) -> None:
        """Keep lines; for progress bars, only their final state."""
        with self._lock:
            for text in texts:
                if source is not None and not text.endswith("\n"):
                    self._bars[source] = text
                    continue
                bar = "" if source is None else self._bars.pop(source, "")
                ended = bar.rstrip("\r") + text if text == "\n" else text
                self._lines.append(Line(self.count, stream, source, ended))
                self.count += 1
                self._characters += len(ended) + LINE_CHARACTERS
            while self._characters > KEPT_CHARACTERS and len(self._lines) > self._most:
                self._characters -= len(self._lines.popleft().text) + LINE_CHARACTERS

    def since(self, number: int, streams: Sequence[int]) -> list[Line]:
        """Return the lines of these streams after the first `number` lines."""
        with self._lock:
            number = max(number, self.count - self._most)
            return [line for line in self._lines if line.number >= number and line.stream in streams]

    def output_from(self, number: int) -> tuple[tuple[OutputLine, ...], int]:
        """Return the lines from a number on, only the last ones if there are many, and the number of the next line."""
        with self._lock:
            first = max(0, number - self._lines[0].number) if self._lines else 0
            found = list(itertools.islice(self._lines, max(first, len(self._lines) - SHOWN_LINES), None))
            count = self.count
        return tuple(map(_shown, found)), count


def _shown(line: Line) -> OutputLine:
    text = plain(line.text.rstrip("\r\n"))
    if line.source is not None:
        text = text.replace(line.source.prefix, "", 1)  # With time stamps, the prefix does not begin the line.
    worker = None if line.source is None else line.source.rank
    return OutputLine(line.number, worker, line.stream == STDERR, text[:SHOWN_CHARACTERS])
