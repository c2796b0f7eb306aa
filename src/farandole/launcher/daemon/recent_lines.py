"""What was shown of a job lately, for clients that come later."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from farandole.launcher.output.terminal import Source

RECALLED_LINES = 200


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
        self._lines: collections.deque[Line] = collections.deque(maxlen=most)
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

    def since(self, number: int, streams: Sequence[int]) -> list[Line]:
        """Return the lines of these streams that came after so many."""
        with self._lock:
            return [line for line in self._lines if line.number >= number and line.stream in streams]
