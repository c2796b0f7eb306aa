"""Where a job is shown whose client may leave, be killed, or be followed by another.

A *sink* is one place that lines go to: a terminal, a pipe, a file, the log. The console has two threads, one for each
stream, and each writes to the sink of its stream, which is one for both when both are the same terminal. Others only
say which sink is next. A thread leaves the old sink and enters the new one by itself, between two lines; so that it
gets there, who takes a sink away *severs* its descriptors: whatever waits in a write fails then, and what it was to
write goes to the next sink.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from farandole.agent.protocol import STDERR, STDOUT
from farandole.launcher.output.console import descriptor_writer
from farandole.launcher.output.outlet import Outlet, outlet_for
from farandole.launcher.output.terminal import Look, Source

RECALLED_LINES = 200
LOG_BYTES = 64 * 1024 * 1024

WAKING_SIGNAL = signal.SIGUSR1
"""Sent to a thread that waits in a write. It needs a handler that does nothing; see `heed_waking`."""


def heed_waking() -> None:
    """Let a write that waits be interrupted in this process. Only the main thread can do that."""
    signal.signal(WAKING_SIGNAL, lambda signum, where: None)


class SeverableWriter:
    """Writes to a descriptor, which it owns, until another thread severs it.

    Args:
        descriptor: where to.
        nobody: the writing end of a pipe that nobody reads.
    """

    def __init__(self, descriptor: int, nobody: int) -> None:
        self._descriptor = descriptor
        self._nobody = nobody
        self._write = descriptor_writer(descriptor)
        self._thread: int | None = None
        """That of whoever is writing."""
        self._lock = threading.Lock()
        """Held while the descriptor changes; never while somebody writes."""
        self._closed = False

    def __call__(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            OSError: nobody can read it any more, or it was severed.
        """
        self._thread = threading.get_ident()
        try:
            self._write(data)
        finally:
            self._thread = None

    def sever(self) -> None:
        """Let go of what is behind the descriptor, in any thread: a write that waits fails, and later ones too."""
        # The writing thread may be anywhere. Before the kernel has looked the descriptor up, it finds the pipe that
        # nobody reads. After that, the signal ends its wait, or keeps it from beginning; Python writes once more, and
        # finds that pipe.
        with self._lock:
            if self._closed:
                return
            os.dup2(self._nobody, self._descriptor, inheritable=False)
            if (thread := self._thread) is not None:
                signal.pthread_kill(thread, WAKING_SIGNAL)

    def close(self) -> None:
        """Close the descriptor, when nobody writes any more."""
        with self._lock:
            self._closed = True
            os.close(self._descriptor)


class Line(NamedTuple):
    """One line as it was shown."""

    number: int
    stream: int
    source: Source | None
    """Which worker printed it; None: the launcher said it."""
    text: str


class Recall:
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


class OutputSink:
    """One place that lines go to.

    Args:
        outlet: shows them.
        streams: those that are shown there.
        writer: what is let go of at the end; None: the sink stays.
        since: how many lines of the job were shown there before.
        left: called with it, in a writing thread, when all is written that is to be.
    """

    def __init__(
        self,
        outlet: Outlet,
        streams: Sequence[int],
        writer: SeverableWriter | None = None,
        since: int | None = None,
        left: Callable[[OutputSink], None] = lambda sink: None,
    ) -> None:
        self.outlet = outlet
        self.lock = threading.Lock()
        """Held by the thread that writes."""
        self._writer = writer
        self._since = since
        self._left = left
        self._streams = tuple(streams)
        self._staying = set(streams)
        self._entered = False

    def enter(self, recall: Recall) -> None:
        """Catch up, once, on what has been shown elsewhere. With the lock.

        Raises:
            OSError: nobody can read it.
        """
        if self._entered:
            return
        self._entered = True
        for line in () if self._since is None else recall.since(self._since, self._streams):
            if line.source is None:
                self.outlet.say(line.text)
            else:
                self.outlet.show(line.source, [line.text])
        if STDERR in self._streams:
            self.outlet.show_status(recall.status)

    def leave(self, stream: int) -> None:
        """Write no line of this stream any more. The last one tidies up."""
        if self._writer is None:
            return
        with self.lock:
            self._staying.discard(stream)
            if self._staying:
                return
            with contextlib.suppress(OSError):  # Nobody sees it.
                self.outlet.finish()
            self._writer.close()
        self._left(self)

    def sever(self) -> None:
        """Let go at once of what is behind it, in any thread."""
        if self._writer is not None:
            self._writer.sever()


class Side(Outlet):
    """What the console's thread for one stream writes to: the sink that it is on.

    Args:
        stream: which.
        log: the sink for when there is no other, which takes all.
        recall: gets every line.
        lost: called, in the writing thread, with a sink that nobody reads any more.
    """

    def __init__(self, stream: int, log: OutputSink, recall: Recall, lost: Callable[[OutputSink], None]) -> None:
        self._stream = stream
        self._log = log
        self._recall = recall
        self._lost = lost
        self._lock = threading.Lock()
        """Held while these change."""
        self._current = log
        self._next = log
        self._skipped: list[OutputSink] = []
        """Those that were next and are not any more."""

    def turn_to(self, sink: OutputSink | None) -> None:
        """Go on there with the next line; None: in the log. May be called in any thread."""
        with self._lock:
            if self._next is not self._current:
                self._skipped.append(self._next)
            self._next = sink or self._log

    def show(self, source: Source, lines: Sequence[str]) -> None:
        """Write lines of a worker."""
        self._do(lambda outlet: outlet.show(source, lines), source, lines)

    def say(self, text: str) -> None:
        """Write a line of the launcher's own."""
        self._do(lambda outlet: outlet.say(text), None, [text])

    def end(self, source: Source) -> None:
        """Take note that this stream is over."""
        self._do(lambda outlet: outlet.end(source))

    def show_status(self, status: Callable[[int], str] | None) -> None:
        """Change the status line, here and wherever the job is shown later."""
        self._recall.status = status
        self._do(lambda outlet: outlet.show_status(status))

    def rest(self) -> None:
        """Take note that there is nothing else to write now."""
        self._do(lambda outlet: outlet.rest())

    def finish(self) -> None:
        """Leave the sink; nothing comes any more."""
        self._settle().leave(self._stream)

    def _do(self, call: Callable[[Outlet], None], source: Source | None = None, lines: Sequence[str] = ()) -> None:
        while True:
            sink = self._settle()
            with sink.lock:
                try:
                    sink.enter(self._recall)
                    call(sink.outlet)
                    # Not before: what cannot be written here is written, and so remembered, elsewhere.
                    self._recall.add(self._stream, source, lines)
                    return
                except OSError:
                    pass
            self._fall_back(sink)

    def _settle(self) -> OutputSink:
        """Go to the sink that is next, and return it."""
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


def open_sinks(
    descriptors: Sequence[int],
    looks: Sequence[Look],
    nobody: int,
    since: int,
    left: Callable[[OutputSink], None],
) -> dict[int, OutputSink]:
    """Return the sinks of both streams: one for both when they are the same terminal.

    Args:
        descriptors: of standard output and error; they belong to the sinks now.
        looks: of both.
        nobody: see `SeverableWriter`.
        since: how many lines of the job were shown there before.
        left: called with each of them, in a writing thread, when all is written that is to be.
    """
    streams = (STDOUT, STDERR)
    writers = [SeverableWriter(descriptor, nobody) for descriptor in descriptors]
    if looks[0].terminal is not None and looks[0].terminal == looks[1].terminal:
        writers[0].close()
        both = OutputSink(outlet_for(writers[1], looks[1]), streams, writers[1], since, left)
        return {STDOUT: both, STDERR: both}
    return {
        stream: OutputSink(outlet_for(writer, look), (stream,), writer, since, left)
        for stream, writer, look in zip(streams, writers, looks, strict=True)
    }


class LogFile:
    """A file that grows up to a limit and begins anew then; what it was is kept once. Never raises, never waits long.

    Args:
        path: where; beside it, with `.1` at its end, is what it was before.
        limit: bytes.
    """

    def __init__(self, path: Path, limit: int = LOG_BYTES) -> None:
        self._path = path
        self._limit = limit
        self._lock = threading.Lock()
        self._written = 0
        self._descriptor = self._open()

    def __call__(self, data: bytes) -> None:
        """Write, as far as the disk lets us: a full one must not end a training that runs."""
        with self._lock, contextlib.suppress(OSError):
            if self._written and self._written + len(data) > self._limit:
                self._begin_anew()
            self._written += os.write(self._descriptor, data)

    def fileno(self) -> int:
        """Return the descriptor, which stays the same."""
        return self._descriptor

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _begin_anew(self) -> None:
        os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
        fresh = self._open()
        os.dup2(fresh, self._descriptor, inheritable=False)
        os.close(fresh)
        self._written = 0
