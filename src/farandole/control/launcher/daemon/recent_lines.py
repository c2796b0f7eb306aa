"""What was shown of a job lately, for clients that come later."""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from farandole.control.agent.protocol import STDERR
from farandole.control.jobs.view import OutputLine
from farandole.control.launcher.output.terminal import Source, plain

RECALLED_LINES = 200
KEPT_CHARACTERS = 1 << 20
"""Of what was printed, so much is kept for clients that show more than the last lines."""
LINE_CHARACTERS = 64
"""What each line counts on top of its text."""
SHOWN_CHARACTERS = 2000
"""Of a line, they get no more than that."""
SHOWN_LINES = 2000
"""And at a time no more lines than that."""


class Line(NamedTuple):
    """One line as it was shown."""

    number: int
    stream: int
    source: Source | None
    """Which worker printed it; None: the launcher said it."""
    text: str


class RecentLines:
    """What was shown of a job lately. Both writing threads add to it."""

    def __init__(self, most: int = RECALLED_LINES) -> None:
        self._most = most
        self._lines: collections.deque[Line] = collections.deque()
        self._characters = 0
        self._bars: dict[Source, str] = {}
        """Lines that may still be covered by the next one; see `terminal`."""
        self._lock = threading.Lock()
        self.count = 0
        """How many there were."""
        self.status: Callable[[int], str] | None = None
        """The status line, wherever there is a place for one."""

    def add(self, stream: int, source: Source | None, texts: Iterable[str]) -> None:
        """Keep lines; of progress bars only what they have become at the end."""
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
        """Return the lines of these streams that came after so many."""
        with self._lock:
            number = max(number, self.count - self._most)
            return [line for line in self._lines if line.number >= number and line.stream in streams]

    def output_from(self, number: int) -> tuple[tuple[OutputLine, ...], int]:
        """Return the lines from this number on, the last ones if they are many, and the number of the next one."""
        with self._lock:
            first = max(0, number - self._lines[0].number) if self._lines else 0
            found = list(itertools.islice(self._lines, max(first, len(self._lines) - SHOWN_LINES), None))
            count = self.count
        return tuple(map(_shown, found)), count


def _shown(line: Line) -> OutputLine:
    text = plain(line.text.rstrip("\r\n"))
    if line.source is not None:
        text = text.replace(line.source.prefix, "", 1)  # With time stamps, it does not begin the line.
    worker = None if line.source is None else line.source.rank
    return OutputLine(line.number, worker, line.stream == STDERR, text[:SHOWN_CHARACTERS])
