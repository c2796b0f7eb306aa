"""What workers print, on its way to the launcher's own standard output and error, and into files.

Every line becomes `[<rank>]<stdout>:line` or `[<rank>]<stderr>:line`. A line ends with a newline or, as progress bars
do it, with a carriage return; the ending stays what it was. Files get the bytes as the worker wrote them.

Two threads write, one to each of the launcher's streams, because writing may block for as long as a reader likes. All
else stays in the caller's thread. What waits to be written is bounded by the agents' flow control.
"""

from __future__ import annotations

import os
import queue
import re
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TextIO

from farandole.agent.messages import STDERR, STDOUT

LONGEST_LINE = 64 * 1024
"""A longer line is cut into several, so that a worker that never ends a line costs no memory."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_NAMES = {STDOUT: "stdout", STDERR: "stderr"}

Sink = Callable[[bytes], None]
"""Writes all it is given, however long that takes. Raises OSError when nobody can read it any more."""


class LineSplitter:
    """Puts a prefix before every line of a stream of bytes that comes in arbitrary pieces.

    The result is valid UTF-8 whatever comes in. Before the prefix stands what `stamp` returns, if there is one.

    Example:
        >>> splitter = LineSplitter("[0]<stdout>:")
        >>> splitter.feed(b"one\\ntw")
        b'[0]<stdout>:one\\n'
        >>> splitter.feed(b"o")
        b''
        >>> splitter.flush()
        b'[0]<stdout>:two\\n'
    """

    def __init__(self, prefix: str, stamp: Callable[[], str] | None = None) -> None:
        self._prefix = prefix
        self._stamp = stamp
        self._rest = b""
        self._after_return = False
        """The last line ended with a carriage return: a newline that comes next belongs to it."""

    def feed(self, data: bytes) -> bytes:
        """Take more bytes and return the lines that are now complete."""
        out = []
        if self._after_return and data:
            self._after_return = False
            if data.startswith(b"\n"):
                out.append("\n")
                data = data[1:]
        data = self._rest + data
        start = 0
        for match in _LINE_END.finditer(data):
            line = data[start : match.end()]
            if line == b"\r" and match.end() == len(data):
                break  # The next bytes tell whether this is an empty line or the start of a progress bar.
            start = match.end()
            # "\r 10%\r 20%": the empty line before the first \r says nothing.
            if line != b"\r":
                out.append(self._line(line))
            self._after_return = start == len(data) and line.endswith(b"\r")
        self._rest = data[start:]
        while len(self._rest) > LONGEST_LINE:
            cut = _character_start(self._rest, LONGEST_LINE)
            out.append(self._line(self._rest[:cut] + b"\n"))
            self._rest = self._rest[cut:]
        return "".join(out).encode()

    def flush(self) -> bytes:
        """Return what is left, as a line of its own."""
        rest, self._rest = self._rest, b""
        return self._line(rest + b"\n").encode() if rest.strip(b"\r") else b""

    def _line(self, line: bytes) -> str:
        stamp = self._stamp() if self._stamp is not None else ""
        return stamp + self._prefix + line.decode("utf-8", "replace")


def _character_start(data: bytes, position: int) -> int:
    """Return the last place up to `position` where no UTF-8 character is cut."""
    for back in range(4):
        if data[position - back] & 0xC0 != 0x80:
            return position - back
    return position


class Console:
    """The launcher's standard output and error.

    Args:
        out: where workers' standard output goes.
        err: where their standard error and the launcher's own words go.
        on_broken: called, in a writer's thread, when nobody reads a sink any more. What comes later is dropped.
    """

    def __init__(self, out: Sink, err: Sink, on_broken: Callable[[], None] = lambda: None) -> None:
        self._writers = {
            STDOUT: _Writer("farandole-stdout", out, on_broken),
            STDERR: _Writer("farandole-stderr", err, on_broken),
        }

    def submit(self, stream: int, job: Callable[[Sink], None]) -> None:
        """Let the stream's thread run `job` with the sink, after all that was submitted before."""
        self._writers[stream].jobs.put(job)

    def say(self, text: str) -> None:
        """Write a line of the launcher's own to standard error."""
        self.submit(STDERR, lambda sink: sink(f"{text}\n".encode()))

    def close(self, seconds: float | None) -> bool:
        """Wait until all is written, at most so long; False when something was not."""
        deadline = None if seconds is None else time.monotonic() + seconds
        # Standard error last: what goes wrong with the other is told there.
        for writer in (self._writers[STDOUT], self._writers[STDERR]):
            writer.jobs.put(None)
            writer.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(writer.is_alive() for writer in self._writers.values())


class _Writer(threading.Thread):
    def __init__(self, name: str, sink: Sink, on_broken: Callable[[], None]) -> None:
        # A daemon: a reader that never reads on must not keep an interrupted launcher alive.
        super().__init__(name=name, daemon=True)
        self.jobs: queue.SimpleQueue[Callable[[Sink], None] | None] = queue.SimpleQueue()
        self._sink = sink
        self._broken = False
        self._on_broken = on_broken
        self.start()

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            job(self._write)

    def _write(self, data: bytes) -> None:
        if self._broken or not data:
            return
        try:
            self._sink(data)
        except (OSError, ValueError):  # ValueError: a Python stream that was closed.
            self._broken = True
            self._on_broken()


class WorkerStream:
    """One stream of one worker: splits, prefixes, writes.

    Args:
        file: gets the bytes as they are, or the lines with their prefixes; closed at the end.
        prefixes_in_file: whether the file gets lines with prefixes.
        timestamps: whether the time stands before each prefix.
        written: called, in the console's thread, with the number of bytes that were taken care of.
    """

    def __init__(
        self,
        console: Console,
        rank: int,
        stream: int,
        *,
        file: BinaryIO | None = None,
        prefixes_in_file: bool = False,
        timestamps: bool = False,
        written: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._console = console
        self._stream = stream
        self._splitter = LineSplitter(f"[{rank}]<{_NAMES[stream]}>:", time.asctime if timestamps else None)
        self._file = file
        self._prefixes_in_file = prefixes_in_file
        self._written = written

    def write(self, data: bytes) -> None:
        """Take what the worker wrote. Returns at once."""

        def job(sink: Sink) -> None:
            lines = self._splitter.feed(data)
            self._keep(lines if self._prefixes_in_file else data)
            sink(lines)
            self._written(len(data))

        self._console.submit(self._stream, job)

    def close(self) -> None:
        """Write the last line, even if it has no end."""

        def job(sink: Sink) -> None:
            rest = self._splitter.flush()
            if self._prefixes_in_file:
                self._keep(rest)
            sink(rest)
            if self._file is not None:
                self._file.close()

        self._console.submit(self._stream, job)

    def _keep(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:  # A full disk must not end a training that runs.
            self._console.say(f"warning: {self._file.name} ends here: {error.strerror}")
            self._file.close()
            self._file = None


def open_log(directory: Path, rank: int, size: int, stream: int) -> BinaryIO:
    """Open `directory/rank.<rank>/stdout` or `stderr` for writing; ranks are padded with zeros to one width."""
    folder = directory / f"rank.{rank:0{len(str(size - 1))}}"
    folder.mkdir(parents=True, exist_ok=True)
    return open(folder / _NAMES[stream], "wb", buffering=0)


def descriptor_sink(fd: int) -> Sink:
    """Write to a file descriptor, whether it blocks or not."""

    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                select.select([], [fd], [])

    return write


def text_sink(stream: TextIO) -> Sink:
    """Write to a Python text stream, such as a notebook's."""

    def write(data: bytes) -> None:
        stream.write(data.decode())
        stream.flush()

    return write
