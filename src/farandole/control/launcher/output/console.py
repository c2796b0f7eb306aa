"""The path of workers' output to the launcher's standard output and error, and into files.

Every line becomes `[<rank>]<stdout>:line` or `[<rank>]<stderr>:line`. A line ends with a newline or, in progress bars,
with a carriage return; the ending is kept, except on a terminal (see `terminal`). Files get the bytes as the worker
wrote them.

Two threads write, one for each of the launcher's streams, because a reader may block a write for any time. If both
streams are the same terminal there is one thread, which knows everything on the screen. All other work is done in the
caller's thread. The amount of data that waits to be written is bounded by the agents' flow control.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import re
import select
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from farandole.control.agent.protocol import STDERR, STDOUT
from farandole.control.launcher.output.alike import Alike
from farandole.control.launcher.output.line_writer import ByteWriter, LineWriter, line_writer_for
from farandole.control.launcher.output.lines import LineSplitter
from farandole.control.launcher.output.logs import unusable
from farandole.control.launcher.output.terminal import COLOR_CHOICES, STREAM_NAMES, Look, OutputSource, look_of
from farandole.errors import SpecError

PLAIN = Look()
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True)
class OutputOptions:
    """The options of the user for showing a job's output.

    Raises:
        SpecError: a value is not valid.
    """

    color: str = "auto"
    """Whether prefixes are coloured: `auto` means on a terminal, unless NO_COLOR is set."""
    only_ranks: tuple[range, ...] | None = None
    """The ranks whose output is shown; None: all. Files get the output of all ranks in any case."""
    tee: bool = False
    """Whether --tee was given; output is both shown and saved in any case if there is a directory."""
    status: bool = True
    """Whether a terminal gets a status line."""
    is_seen_with_report: bool = False
    """Whether the report of a failure is shown below this output, and so need not repeat parts of it."""
    once: bool = False
    """Whether lines that many ranks print are shown once."""

    def __post_init__(self) -> None:
        if self.color not in COLOR_CHOICES:
            raise SpecError(f"--color {self.color} is not known", f"choose from {', '.join(COLOR_CHOICES)}")

    def shows(self, rank: int) -> bool:
        """Return whether the output of this rank is shown."""
        return self.only_ranks is None or any(rank in ranks for ranks in self.only_ranks)

    def check(self, size: int, directory: Path | None) -> None:
        """Check that these options are valid for a job of this size with this output directory.

        Raises:
            SpecError: a rank does not exist, or the directory is missing.
        """
        highest = max((ranks[-1] for ranks in self.only_ranks or ()), default=0)
        if highest >= size:
            raise SpecError(f"--only-rank: the job has no rank {highest}", f"ranks go from 0 to {size - 1}")
        if self.tee and directory is None:
            raise SpecError("--tee: the output directory is missing", "add --output-dir DIR")

    def describe(self, directory: str | None) -> str:
        """Return where the output goes, for the plan."""
        kept = "" if directory is None else f"{directory}/rank.*/"
        if self.only_ranks is None:
            return f"console and {kept}" if kept else "console"
        shown = ", ".join(str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}" for ranks in self.only_ranks)
        console = f"console (rank {shown} only)" if shown else ""
        return " and ".join(filter(None, (console, kept))) or "nowhere"


def read_ranks(text: str) -> tuple[range, ...]:
    """Parse the value of --only-rank: numbers and ranges, or `none`.

    Raises:
        SpecError: the text is something else.

    Example:
        >>> read_ranks("0,4-7")
        (range(0, 1), range(4, 8))
    """
    ranges = []
    for part in text.split(",") if text != "none" else ():
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part, re.ASCII)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if last < first:
            raise SpecError(f"--only-rank {text}: {part!r} is not a rank", "write ranks such as 0 or 0,4-7, or none")
        ranges.append(range(first, last + 1))
    return tuple(ranges)


class Console:
    """The launcher's standard output and error.

    Args:
        out: the target of workers' standard output: a function that writes bytes, or a line writer.
        err: the target of their standard error and of the launcher's messages.
        on_broken: called in a writing thread when the reader of a stream is gone. Later output is dropped. If a disk
            is full, only the lines that do not fit are dropped, with a warning.
        options: the output to show.
        out_look: the look of standard output.
        err_look: the look of standard error.
    """

    def __init__(
        self,
        out: ByteWriter | LineWriter,
        err: ByteWriter | LineWriter,
        on_broken: Callable[[], None] = lambda: None,
        *,
        options: OutputOptions | None = None,
        out_look: Look = PLAIN,
        err_look: Look = PLAIN,
    ) -> None:
        self.options = options or OutputOptions()
        self.has_status = self.options.status and (err_look.terminal is not None or isinstance(err, LineWriter))
        """Whether a status line can be shown, now or later."""
        self._said: set[str] = set()
        once = self.options.once
        error = _Writer("farandole-stderr", self._line_writer(err, err_look, on_broken), once)
        # One terminal has one writer: two writers would not know what the other has drawn.
        shared = err_look.terminal is not None and out_look.terminal == err_look.terminal
        self._writers = {
            STDOUT: error if shared else _Writer("farandole-stdout", self._line_writer(out, out_look, on_broken), once),
            STDERR: error,
        }

    def _line_writer(self, target: ByteWriter | LineWriter, look: Look, on_broken: Callable[[], None]) -> LineWriter:
        if isinstance(target, LineWriter):
            return target
        return line_writer_for(until_broken(target, on_broken, self.say_once), look)

    def submit(self, stream: int, job: Callable[[LineWriter], None]) -> None:
        """Run `job` in the stream's thread with its line writer, after everything submitted before."""
        self._writers[stream].jobs.put(job)

    def say(self, text: str) -> None:
        """Write a line of the launcher to standard error."""
        self.submit(STDERR, lambda line_writer: line_writer.say(text))

    def say_once(self, text: str) -> None:
        """Write a line unless it has already been written."""

        def job(line_writer: LineWriter) -> None:
            if text not in self._said:
                self._said.add(text)
                line_writer.say(text)

        self.submit(STDERR, job)

    def show_status(self, status: Callable[[int], str] | None) -> None:
        """Show a status line: a function from the number of columns to a text, called in the writing thread."""
        self.submit(STDERR, lambda line_writer: line_writer.show_status(status))

    def close(self, seconds: float | None) -> bool:
        """Wait until everything is written, for `seconds` at most; return False if something was not."""
        deadline = None if seconds is None else time.monotonic() + seconds
        # Standard error comes last: problems with the other stream are reported there.
        for writer in (self._writers[STDOUT], self._writers[STDERR]):
            writer.jobs.put(None)
            writer.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(writer.is_alive() for writer in self._writers.values())


class _Writer(threading.Thread):
    def __init__(self, name: str, line_writer: LineWriter, once: bool) -> None:
        # A daemon: a reader that stops reading must not keep an interrupted launcher alive.
        super().__init__(name=name, daemon=True)
        self.jobs: queue.SimpleQueue[Callable[[LineWriter], None] | None] = queue.SimpleQueue()
        self._alike = Alike(line_writer) if once else None
        self._line_writer: LineWriter = self._alike or line_writer
        self.start()

    def run(self) -> None:
        while True:
            try:
                job = self.jobs.get(timeout=None if self._alike is None else self._alike.seconds_to_wait)
            except queue.Empty:
                self._line_writer.rest()
                continue
            if job is None:
                break
            job(self._line_writer)
            if self.jobs.empty():
                self._line_writer.rest()
        self._line_writer.finish()


def until_broken(writer: ByteWriter, on_broken: Callable[[], None], warn: Callable[[str], None]) -> ByteWriter:
    """Return a writer that drops everything after its last reader is gone, and what a full disk has no space for.

    It raises nothing: without the thread that calls it, nobody would take the workers' output, and they would wait.
    """
    broken = False

    def write(data: bytes) -> None:
        nonlocal broken
        if broken or not data:
            return
        try:
            writer(data)
        except OSError as error:
            if error.errno in _NO_SPACE:
                warn(
                    f"warning: standard output loses lines: {error.strerror}\n"
                    "hint: training continues; free some space, and lines are written again"
                )
                return
            broken = True
        except ValueError:  # A Python stream that was closed.
            broken = True
        except Exception as error:  # A user's stream raises anything.
            broken = True
            warn(
                f"warning: output is no longer written: {type(error).__name__}: {error}\n"
                "hint: training continues; give a stream that takes text, such as a file opened with mode 'w'"
            )
        if broken:
            on_broken()

    return write


def open_console(options: OutputOptions, environment: Mapping[str, str], on_broken: Callable[[], None]) -> Console:
    """Return a console on this process's standard output and error, with the look that they support.

    Args:
        options: the output to show.
        environment: the environment, in which NO_COLOR and TERM may be set.
        on_broken: called when the reader of a stream is gone, as for `Console`.
    """
    return Console(
        descriptor_writer(STDOUT),
        descriptor_writer(STDERR),
        on_broken,
        options=options,
        out_look=look_of(STDOUT, options.color, environment),
        err_look=look_of(STDERR, options.color, environment),
    )


class WorkerStream:
    """One stream of one worker: splits it into lines, adds prefixes, writes them.

    Args:
        file: the file that gets the bytes unchanged, or the lines with their prefixes; closed at the end.
        prefixes_in_file: whether the file gets lines with prefixes.
        timestamps: whether the time precedes each prefix.
        written: called in the console's thread with the number of bytes that have been handled.
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
        self._source = OutputSource(rank, stream)
        self._shown = console.options.shows(rank)
        self._splitter = LineSplitter(self._source.prefix, time.asctime if timestamps else None)
        self._file = file
        self._prefixes_in_file = prefixes_in_file
        self._written = written
        if self._shown:
            console.submit(stream, lambda line_writer: line_writer.begin(self._source))

    def write(self, data: bytes) -> None:
        """Accept bytes that the worker wrote. Returns at once."""

        def job(line_writer: LineWriter) -> None:
            lines = self._splitter.feed(data)
            self._keep("".join(lines).encode() if self._prefixes_in_file else data)
            if self._shown:
                line_writer.show(self._source, lines)
            line_writer.when_shown(lambda: self._written(len(data)))

        self._console.submit(self._source.stream, job)

    def close(self) -> None:
        """Write the last line, even if it has no line end."""

        def job(line_writer: LineWriter) -> None:
            rest = self._splitter.flush()
            if self._prefixes_in_file:
                self._keep("".join(rest).encode())
            if self._shown:
                line_writer.show(self._source, rest)
                line_writer.end(self._source)
            if self._file is not None:
                self._file.close()

        self._console.submit(self._source.stream, job)

    def _keep(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:  # A full disk must not end a running job.
            self._console.say(f"warning: {self._file.name} ends here: {error.strerror}")
            self._console.say_once(
                "hint: training continues; free some space, or use another --output-dir for the next run"
            )
            self._file.close()
            self._file = None


def open_worker(
    console: Console,
    rank: int,
    folder: Path | None,
    written: Callable[[int, int], Callable[[int], None]],
    *,
    prefixes_in_files: bool = False,
    timestamps: bool = False,
) -> dict[tuple[int, int], WorkerStream]:
    """Return both streams of one worker, by rank and stream, with their files open.

    Args:
        console: the console that shows them.
        rank: the worker's rank.
        folder: the folder for the files, if any.
        written: returns, for a rank and a stream, the function to call with the number of bytes that have been handled.
        prefixes_in_files: whether files get lines as they are shown.
        timestamps: whether the time precedes each prefix.

    Raises:
        SpecError: its files cannot be opened.
    """
    files: dict[int, BinaryIO | None] = dict.fromkeys((STDOUT, STDERR))
    if folder is not None:
        with contextlib.ExitStack() as opened:
            for stream in files:
                files[stream] = opened.enter_context(open_log(folder, stream))
            opened.pop_all()
    return {
        (rank, stream): WorkerStream(
            console,
            rank,
            stream,
            file=file,
            prefixes_in_file=prefixes_in_files,
            timestamps=timestamps,
            written=written(rank, stream),
        )
        for stream, file in files.items()
    }


def open_log(folder: Path, stream: int) -> BinaryIO:
    """Open `folder/stdout` or `stderr` for appending, without a buffer.

    Raises:
        SpecError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return open(folder / STREAM_NAMES[stream], "ab", buffering=0)
    except OSError as error:
        raise unusable(error) from None


def descriptor_writer(fd: int) -> ByteWriter:
    """Return a function that writes to a file descriptor, blocking or not."""

    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                select.select([], [fd], [])

    return write


def text_writer(stream: Any) -> ByteWriter:
    """Return a function that writes to a Python text stream, such as a notebook's: any object with `write`.

    Characters that the stream's encoding lacks are escaped.
    """

    def write(data: bytes) -> None:
        text = data.decode()
        try:
            stream.write(text)
        except UnicodeEncodeError as error:
            stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        if hasattr(stream, "flush"):
            stream.flush()

    return write
