"""What many workers print alike is shown once, with their ranks; files have the lines of each.

    189 ranks (0-188) printed:
        | UserWarning: ...

To find that out, lines wait for a moment: all lines of a job of many workers; of a smaller one, only tracebacks, which
workers often print because of the same error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from farandole.control.agent.protocol import STDERR
from farandole.control.jobs.log_lines import MARK_OF_ALIKE
from farandole.control.launcher.output.line_writer import LineWriter
from farandole.control.launcher.output.terminal import Source
from farandole.control.roster.events import ranks

MANY = 16
"""Workers of a job all of whose lines wait."""
WAIT_SECONDS = 0.5
# A worker that prints more than that in a moment prints what others do not.
_MOST_CHARACTERS = 16 * 1024
# How a traceback begins, and what Python prints about a script that it cannot read.
_TRACEBACKS = ("Traceback (most recent call last):", '  File "')


class Alike(LineWriter):
    """Passes on what one thread of the console writes; lines that may be printed by others, too, after a moment.

    Args:
        target: where it goes.
        clock: seconds that only grow.
    """

    def __init__(self, target: LineWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._ranks: set[int] = set()
        self._held: dict[Source, list[str]] = {}
        self._ended: list[Source] = []
        self._then: list[Callable[[], None]] = []
        self._until = 0.0

    def begin(self, source: Source) -> None:
        """Count a worker, which may print from now on."""
        self._ranks.add(source.rank)

    def show(self, source: Source, lines: Sequence[str]) -> None:
        """Write lines of a worker, or have them wait."""
        if self._held and self._clock() >= self._until:
            self.flush()  # Others may print all the time, so that `rest` is never called.
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
        """Call a function when all lines are written that were to be shown up to now."""
        if self._held:
            self._then.append(then)
        else:
            self._target.when_shown(then)

    def say(self, text: str) -> None:
        """Write a line of the launcher's own."""
        self.flush()
        self._target.say(text)

    def end(self, source: Source) -> None:
        """Record that this stream is over."""
        if source in self._held:
            self._ended.append(source)
        else:
            self._target.end(source)

    def show_status(self, status: Callable[[int], str] | None) -> None:
        """Change the status line, where there is one."""
        self._target.show_status(status)

    def rest(self) -> None:
        """Write what has waited long enough."""
        if self._held and self._clock() >= self._until:
            self.flush()
        self._target.rest()

    def finish(self) -> None:
        """Write all that waits; nothing comes any more."""
        self.flush()
        self._target.finish()

    @property
    def seconds_to_wait(self) -> float | None:
        """Until `rest` has something to write; None: it has not."""
        return max(0.0, self._until - self._clock()) if self._held else None

    def flush(self) -> None:
        """Write all that waits: once what several workers have printed, if that is shorter."""
        alike: dict[tuple[int, tuple[str, ...]], list[Source]] = {}
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

    def _first_to_wait(self, source: Source, lines: Sequence[str]) -> int:
        """Return the place of the first line that waits; behind the last one: none does."""
        if len(self._ranks) >= MANY:
            return 0
        if source.stream != STDERR or len(self._ranks) < 2:
            return len(lines)
        found = (place for place, line in enumerate(lines) if line.partition(source.prefix)[2].startswith(_TRACEBACKS))
        return next(found, len(lines))
