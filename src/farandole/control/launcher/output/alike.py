"""Merges equal output: lines that many workers print are shown once, with their ranks; files keep each worker's lines.

    189 ranks (0-188) printed:
        | UserWarning: ...

To find equal lines, output is delayed for a moment: all lines in a job of many workers; in a smaller one only
tracebacks, which workers often print because of the same error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from farandole.control.agent.protocol import STDERR
from farandole.control.jobs.log_lines import MARK_OF_ALIKE
from farandole.control.launcher.output.line_writer import LineWriter
from farandole.control.launcher.output.terminal import OutputSource
from farandole.control.roster.events import ranks

MANY = 16
"""Minimum number of workers for which all lines of a job are delayed."""
WAIT_SECONDS = 0.5
# A worker that prints more than this in a moment prints something that others do not.
_MOST_CHARACTERS = 16 * 1024
# The first line of a traceback, and of Python's report of a syntax error.
_TRACEBACKS = ("Traceback (most recent call last):", '  File "')


class Alike(LineWriter):
    """Passes on the lines of one thread of the console; lines that others may also print are delayed for a moment.

    Args:
        target: the writer that lines are passed to.
        clock: returns seconds on a monotonic clock.
    """

    def __init__(self, target: LineWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._ranks: set[int] = set()
        self._held: dict[OutputSource, list[str]] = {}
        self._ended: list[OutputSource] = []
        self._then: list[Callable[[], None]] = []
        self._until = 0.0

    def begin(self, source: OutputSource) -> None:
        """Register a worker, which may print from now on."""
        self._ranks.add(source.rank)

    def show(self, source: OutputSource, lines: Sequence[str]) -> None:
        """Write lines of a worker, or delay them."""
        if self._held and self._clock() >= self._until:
            self.flush()  # Others may print all the time, and then `rest` is never called.
        if source not in self._held:
            first = self._first_to_wait(source, lines)
            if lines[:first] or not lines:
                self._target.show(source, lines[:first])
            lines = lines[first:]
            if not lines:
                return
            if not self._held:
                self._until = self._clock() + WAIT_SECONDS
        held = self._held.setdefault(source, [])
        held += lines
        if sum(map(len, held)) > _MOST_CHARACTERS or any(line.endswith("\r") for line in lines):
            self.flush()

    def when_shown(self, then: Callable[[], None]) -> None:
        """Call a function once all lines submitted so far are written."""
        if self._held:
            self._then.append(then)
        else:
            self._target.when_shown(then)

    def say(self, text: str) -> None:
        """Write a line of the launcher."""
        self.flush()
        self._target.say(text)

    def end(self, source: OutputSource) -> None:
        """Record that this stream has ended."""
        if source in self._held:
            self._ended.append(source)
        else:
            self._target.end(source)

    def show_status(self, status: Callable[[int], str] | None) -> None:
        """Change the status line, if there is one."""
        self._target.show_status(status)

    def rest(self) -> None:
        """Write the lines that have been delayed long enough."""
        if self._held and self._clock() >= self._until:
            self.flush()
        self._target.rest()

    def finish(self) -> None:
        """Write all delayed lines; nothing follows."""
        self.flush()
        self._target.finish()

    @property
    def seconds_to_wait(self) -> float | None:
        """Seconds until `rest` has something to write; None if nothing is delayed."""
        return max(0.0, self._until - self._clock()) if self._held else None

    def flush(self) -> None:
        """Write all delayed lines; those that several workers printed once, if that is shorter."""
        alike: dict[tuple[int, tuple[str, ...]], list[OutputSource]] = {}
        for source, lines in self._held.items():
            texts = tuple(line.partition(source.prefix)[2] for line in lines)
            alike.setdefault((source.stream, texts), []).append(source)
        for (_, texts), sources in alike.items():
            if len(sources) * len(texts) > 1 + len(texts) and not any(text.endswith("\r") for text in texts):
                which = ranks(source.rank for source in sources).removeprefix("ranks ")
                self._target.say(f"{len(sources)} ranks ({which}) printed:")
                for text in texts:
                    self._target.say(MARK_OF_ALIKE + text.rstrip("\r\n"))
            else:
                for source in sources:
                    self._target.show(source, self._held[source])
        self._held = {}
        for source in self._ended:
            self._target.end(source)
        for then in self._then:
            self._target.when_shown(then)
        self._ended, self._then = [], []

    def _first_to_wait(self, source: OutputSource, lines: Sequence[str]) -> int:
        """Return the index of the first line to delay; one past the last if there is none."""
        if len(self._ranks) >= MANY:
            return 0
        if source.stream != STDERR or len(self._ranks) < 2:
            return len(lines)
        found = (place for place, line in enumerate(lines) if line.partition(source.prefix)[2].startswith(_TRACEBACKS))
        return next(found, len(lines))
