"""The line writer of one thread of the console; other threads choose the sink that it writes to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from farandole.control.launcher.daemon.output_sink import OutputSink
from farandole.control.launcher.daemon.recent_lines import RecentLines
from farandole.control.launcher.output.line_writer import LineWriter
from farandole.control.launcher.output.terminal import OutputSource


class SwitchedLineWriter(LineWriter):
    """Writes the lines of one stream to the current sink.

    Args:
        stream: number of the stream.
        log: the sink that is used when there is no other one; it never fails.
        recent: gets every line.
        lost: called, in the writing thread, with a sink whose reader is gone.
    """

    def __init__(self, stream: int, log: OutputSink, recent: RecentLines, lost: Callable[[OutputSink], None]) -> None:
        self._stream = stream
        self._log = log
        self._recent = recent
        self._lost = lost
        self._lock = threading.Lock()
        """Locked while the fields below change."""
        self._current = log
        self._next = log
        self._skipped: list[OutputSink] = []
        """Sinks that were set as the next one, but replaced before they were used."""

    def switch_to(self, sink: OutputSink | None) -> None:
        """Switch to another sink from the next line on; None: the log. May be called in any thread."""
        with self._lock:
            if self._next is not self._current:
                self._skipped.append(self._next)
            self._next = sink or self._log

    def show(self, source: OutputSource, lines: Sequence[str]) -> None:
        """Write lines of a worker."""
        self._do(lambda line_writer: line_writer.show(source, lines), source, lines)

    def say(self, text: str) -> None:
        """Write a line of the launcher."""
        self._do(lambda line_writer: line_writer.say(text), None, [text])

    def end(self, source: OutputSource) -> None:
        """Record that this stream has ended."""
        self._do(lambda line_writer: line_writer.end(source))

    def show_status(self, status: Callable[[int], str] | None) -> None:
        """Change the status line, also for sinks that follow."""
        self._recent.status = status
        self._do(lambda line_writer: line_writer.show_status(status))

    def rest(self) -> None:
        """Record that no more output is waiting."""
        self._do(lambda line_writer: line_writer.rest())

    def finish(self) -> None:
        """Leave the sink: no more lines follow."""
        self._settle().leave(self._stream)

    def _do(
        self, call: Callable[[LineWriter], None], source: OutputSource | None = None, lines: Sequence[str] = ()
    ) -> None:
        while True:
            sink = self._settle()
            with sink.lock:
                try:
                    sink.enter(self._recent)
                    call(sink.line_writer)
                    # Not earlier: lines that cannot be written here are written, and so remembered, elsewhere.
                    self._recent.add(self._stream, source, lines)
                    return
                except OSError:
                    pass
            self._fall_back(sink)

    def _settle(self) -> OutputSink:
        """Switch to the next sink, and return it."""
        with self._lock:
            left, self._skipped = self._skipped, []
            if self._next is not self._current:
                left.append(self._current)
            sink = self._current = self._next
        for each in left:
            each.leave(self._stream)
        return sink

    def _fall_back(self, sink: OutputSink) -> None:
        with self._lock:
            if self._next is sink:
                self._next = self._log
        self._lost(sink)
