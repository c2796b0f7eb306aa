"""The destinations of a job's output, which change while it runs: clients leave, are killed, or replace each other.

A *sink* is one destination of lines: a terminal, a pipe, a file, the log. The console has two threads, one for each
stream, and each writes to the sink of its stream; both have the same sink if both streams are the same terminal. Other
threads only set the next sink. A writing thread leaves the old sink and enters the new one by itself, between two
lines. To prevent that a blocked write delays this for ever, the thread that removes a sink *severs* its descriptors:
the write then fails, and its lines go to the next sink.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence

from farandole.control.agent.protocol import STDERR, STDOUT
from farandole.control.launcher.daemon.recent_lines import RecentLines
from farandole.control.launcher.output.console import descriptor_writer
from farandole.control.launcher.output.line_writer import LineWriter, line_writer_for
from farandole.control.launcher.output.terminal import Look

INTERRUPT_SIGNAL = signal.SIGUSR1
"""Interrupts a thread that is blocked in a write. Needs a handler, which does nothing: `let_writes_be_interrupted`."""


def let_writes_be_interrupted() -> None:
    """Make it possible to interrupt blocked writes in this process. To be called in the main thread."""
    signal.signal(INTERRUPT_SIGNAL, lambda signum, where: None)


class SeverableWriter:
    """Writes to a descriptor, which it owns, until another thread severs it.

    Args:
        descriptor: the descriptor to write to.
        unread_pipe: the writing end of a pipe without a reader.
    """

    def __init__(self, descriptor: int, unread_pipe: int) -> None:
        self._descriptor = descriptor
        self._unread_pipe = unread_pipe
        self._write = descriptor_writer(descriptor)
        self._thread: int | None = None
        """The thread that is writing."""
        self._lock = threading.Lock()
        """Locked while the descriptor changes; never during a write."""
        self._closed = False

    def __call__(self, data: bytes) -> None:
        """Write all data.

        Raises:
            OSError: there is no reader any more, or the writer was severed.
        """
        self._thread = threading.get_ident()
        try:
            self._write(data)
        finally:
            self._thread = None

    def sever(self) -> None:
        """Release the file behind the descriptor, from any thread: a blocked write and all later ones fail."""
        # The writing thread may be at any point. If the kernel has not yet looked the descriptor up, it finds the pipe
        # without a reader. Otherwise the signal interrupts or prevents the write; Python retries it, and finds the
        # pipe.
        with self._lock:
            if self._closed:
                return
            os.dup2(self._unread_pipe, self._descriptor, inheritable=False)
            if (thread := self._thread) is not None:
                signal.pthread_kill(thread, INTERRUPT_SIGNAL)

    def close(self) -> None:
        """Close the descriptor, after the last write."""
        with self._lock:
            self._closed = True
            os.close(self._descriptor)


class OutputSink:
    """One destination of lines.

    Args:
        line_writer: shows the lines.
        streams: the numbers of the streams that are shown on it.
        writer: the writer to close at the end; None: the sink stays open.
        since: number of lines of the job that were already shown on it.
        left: called with this sink, in a writing thread, once all of its output has been written.
    """

    def __init__(
        self,
        line_writer: LineWriter,
        streams: Sequence[int],
        writer: SeverableWriter | None = None,
        since: int | None = None,
        left: Callable[[OutputSink], None] = lambda sink: None,
    ) -> None:
        self.line_writer = line_writer
        self.lock = threading.Lock()
        """Locked by the thread that is writing."""
        self._writer = writer
        self._since = since
        self._left = left
        self._streams = tuple(streams)
        self._staying = set(streams)
        self._entered = False

    def enter(self, recent: RecentLines) -> None:
        """On the first call, write the lines that were shown elsewhere. To be called while holding the lock.

        Raises:
            OSError: there is no reader.
        """
        if self._entered:
            return
        self._entered = True
        for line in () if self._since is None else recent.since(self._since, self._streams):
            if line.source is None:
                self.line_writer.say(line.text)
            else:
                self.line_writer.show(line.source, [line.text])
        if STDERR in self._streams:
            self.line_writer.show_status(recent.status)

    def leave(self, stream: int) -> None:
        """Write no more lines of this stream. The last stream cleans up."""
        if self._writer is None:
            return
        with self.lock:
            self._staying.discard(stream)
            if self._staying:
                return
            with contextlib.suppress(OSError):  # It has no reader.
                self.line_writer.finish()
            self._writer.close()
        self._left(self)

    def sever(self) -> None:
        """Release its descriptor at once, in any thread."""
        if self._writer is not None:
            self._writer.sever()


def open_sinks(
    descriptors: Sequence[int],
    looks: Sequence[Look],
    unread_pipe: int,
    since: int,
    left: Callable[[OutputSink], None],
) -> dict[int, OutputSink]:
    """Return the sinks of both streams: a common one if they are the same terminal.

    Args:
        descriptors: the descriptors of standard output and error, which belong to the sinks from now on.
        looks: the looks of both streams.
        unread_pipe: as in `SeverableWriter`.
        since: number of lines of the job that were already shown on them.
        left: called with each sink, in a writing thread, once all of its output is written.
    """
    streams = (STDOUT, STDERR)
    writers = [SeverableWriter(descriptor, unread_pipe) for descriptor in descriptors]
    if looks[0].terminal is not None and looks[0].terminal == looks[1].terminal:
        writers[0].close()
        both = OutputSink(line_writer_for(writers[1], looks[1]), streams, writers[1], since, left)
        return {STDOUT: both, STDERR: both}
    return {
        stream: OutputSink(line_writer_for(writer, look), (stream,), writer, since, left)
        for stream, writer, look in zip(streams, writers, looks, strict=True)
    }
