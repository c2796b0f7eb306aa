"""Line writers of the console's threads, which write lines as bytes in a form that the target can show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farandole.base.wire.os_text import SHOWN
from farandole.control.launcher.output.terminal import Look, OutputSource, Screen

ByteWriter = Callable[[bytes], None]
"""Writes all given bytes, however long that takes. Raises OSError when the reader is gone."""


class LineWriter:
    """Line writer for a file, a pipe, or a simple terminal."""

    def __init__(self, writer: ByteWriter, look: Look) -> None:
        self._writer = writer
        self._colors = look.colors

    def show(self, source: OutputSource, lines: Sequence[str]) -> None:
        """Write lines of a worker."""
        self._write("".join(map(source.painted, lines) if self._colors else lines))

    def begin(self, source: OutputSource) -> None:
        """Record that this stream may have lines from now on."""

    def when_shown(self, then: Callable[[], None]) -> None:
        """Call a function once all lines submitted so far are written."""
        then()

    def say(self, text: str) -> None:
        """Write a line of the launcher."""
        self._write(f"{text}\n")

    def end(self, source: OutputSource) -> None:
        """Record that this stream has ended."""

    def show_status(self, status: Callable[[int], str] | None) -> None:
        """Change the status line, if there is one: a function from the number of columns to a text, or None."""

    def rest(self) -> None:
        """Record that no more output is waiting."""

    def finish(self) -> None:
        """Write the remaining output; nothing follows."""

    def _write(self, text: str) -> None:
        self._writer(text.encode("utf-8", SHOWN))


class Terminal(LineWriter):
    """Line writer for a terminal with progress bars and a status line at its bottom."""

    def __init__(self, writer: ByteWriter, look: Look) -> None:
        super().__init__(writer, look)
        self._screen = Screen(look.size, look.colors)

    def show(self, source: OutputSource, lines: Sequence[str]) -> None:
        """Write lines of a worker; its progress bar is drawn only by `rest`."""
        self._write(self._screen.take(source, lines))

    def say(self, text: str) -> None:
        """Write a line of the launcher above the bottom rows."""
        self._write(self._screen.above(f"{text}\n"))

    def end(self, source: OutputSource) -> None:
        """Turn the bar of this stream into an ordinary line."""
        self._write(self._screen.end(source))

    def show_status(self, status: Callable[[int], str] | None) -> None:
        """Change the status line."""
        self._screen.show_status(status)

    def rest(self) -> None:
        """Draw the changes of the bottom rows."""
        self._write(self._screen.refresh())

    def finish(self) -> None:
        """Turn the bottom rows into ordinary lines."""
        self._write(self._screen.finish())


def line_writer_for(writer: ByteWriter, look: Look) -> LineWriter:
    """Return a line writer for the abilities of the target."""
    return (LineWriter if look.terminal is None else Terminal)(writer, look)
