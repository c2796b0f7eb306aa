"""What the console's threads write to: lines go in, bytes come out, as the place they go to can show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farandole.base.wire.os_text import SHOWN
from farandole.control.launcher.output.terminal import Look, Screen, Source

ByteWriter = Callable[[bytes], None]
"""Writes all it is given, however long that takes. Raises OSError when there is no reader any more."""


class LineWriter:
    """A file, a pipe, or a terminal that can do no more than them."""

    def __init__(self, writer: ByteWriter, look: Look) -> None:
        self._writer = writer
        self._colors = look.colors

    def show(self, source: Source, lines: Sequence[str]) -> None:
        """Write lines of a worker."""
        self._write("".join(map(source.painted, lines) if self._colors else lines))

    def begin(self, source: Source) -> None:
        """Record that this stream may have lines from now on."""

    def when_shown(self, then: Callable[[], None]) -> None:
        """Call a function when all lines are written that were to be shown up to now."""
        then()

    def say(self, text: str) -> None:
        """Write a line of the launcher's own."""
        self._write(f"{text}\n")

    def end(self, source: Source) -> None:
        """Record that this stream is over."""

    def show_status(self, status: Callable[[int], str] | None) -> None:
        """Change the status line, where there is one: a function from the columns there are to a text, or None."""

    def rest(self) -> None:
        """Record that there is nothing else to write now."""

    def finish(self) -> None:
        """Write what is still to be written; nothing comes any more."""

    def _write(self, text: str) -> None:
        self._writer(text.encode("utf-8", SHOWN))


class Terminal(LineWriter):
    """A terminal with bars and a status line at its bottom."""

    def __init__(self, writer: ByteWriter, look: Look) -> None:
        super().__init__(writer, look)
        self._screen = Screen(look.size, look.colors)

    def show(self, source: Source, lines: Sequence[str]) -> None:
        """Write lines of a worker, but draw its bar only when there is nothing else to write."""
        self._write(self._screen.take(source, lines))

    def say(self, text: str) -> None:
        """Write a line of the launcher's own above the bottom."""
        self._write(self._screen.above(f"{text}\n"))

    def end(self, source: Source) -> None:
        """Let the bar of this stream become an ordinary line."""
        self._write(self._screen.end(source))

    def show_status(self, status: Callable[[int], str] | None) -> None:
        """Change the status line."""
        self._screen.show_status(status)

    def rest(self) -> None:
        """Draw what has changed at the bottom."""
        self._write(self._screen.refresh())

    def finish(self) -> None:
        """Leave the bottom as ordinary lines."""
        self._write(self._screen.finish())


def line_writer_for(writer: ByteWriter, look: Look) -> LineWriter:
    """Return a line writer that shows lines as the place behind the writer can show them."""
    return (LineWriter if look.terminal is None else Terminal)(writer, look)
