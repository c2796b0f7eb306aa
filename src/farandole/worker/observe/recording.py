"""The threads of a timeline: on rank 0 the one that writes the file, on every other rank the one that sends events.

Both check for new events about thirty times a second while a timeline is recorded; otherwise neither exists.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from farandole.base.wire.clock import ClockOffset
from farandole.base.wire.rendezvous import Probed
from farandole.worker.observe.tap import Tap
from farandole.worker.observe.timeline_messages import Batch
from farandole.worker.observe.trace import Trace

# An operation appears in the file within 0.1 s: an event from another rank waits for this sleep twice.
TICK_SECONDS = 0.03
# The training holds Python's lock for at least three quarters of the time, however much there is to write.
REST = 3.0
# The most events of other ranks that wait to be written; if there are more, the oldest are dropped.
INBOX_BYTES = 16 * 1024 * 1024
# Room that is kept for the end: the records that close the open spans, and the note that the file is full.
END_BYTES = 256 * 1024

PROBES = 8
PROBE_EVERY_SECONDS = 5.0
ANSWER_SECONDS = 0.1


class TraceFile(Protocol):
    """The interface of a destination of records, such as `ArrayFile` and `PacketFile`."""

    def append(self, elements: Sequence[str], *, reserve: int = 0) -> int:
        """Add as many of the first records as there is room for, and return their number."""

    def close(self) -> None:
        """Close the file."""


class Ticker:
    """A thread that repeats an action until it is asked to finish, and then does its last part."""

    def __init__(self, name: str) -> None:
        self._finish = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self) -> None:
        """Make the thread do the last part of its work and end, without waiting for it."""
        self._finish.set()

    def is_alive(self) -> bool:
        """Return whether the thread has not ended."""
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended."""
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        self._begin()
        pause = TICK_SECONDS
        while not self._finish.wait(pause):
            started = time.monotonic()
            self._tick()
            pause = max(TICK_SECONDS, REST * (time.monotonic() - started))
        self._last()

    def _begin(self) -> None:
        """Do the first part of the work."""

    def _tick(self) -> None:
        """Do the work of one interval."""

    def _last(self) -> None:
        """Do the last part of the work."""


class ClockWatch:
    """Keeps the difference from the roster's clock up to date, by bursts of round trips."""

    def __init__(self, probe: Callable[[], None] | None) -> None:
        """Create the watch, without measurements.

        Args:
            probe: requests the roster's time; None: there is no other clock.
        """
        self.clock = ClockOffset()
        self._probe = probe
        self._answered = threading.Event()
        self._left = 0
        self._next_burst = 0.0

    def measured(self, answer: Probed) -> None:
        """Handle the roster's answer."""
        self.clock.measured(answer.sent_ns, answer.now_ns, time.monotonic_ns(), answer.clock)
        self._answered.set()

    def measure(self) -> None:
        """Make some round trips now, unless the offset is exact. Waits for each answer a limited time."""
        for _ in range(PROBES):
            if self._probe is None or self.clock.exact:
                return
            self._answered.clear()
            self._probe()
            self._answered.wait(ANSWER_SECONDS)
        self._next_burst = time.monotonic() + PROBE_EVERY_SECONDS

    def tick(self) -> None:
        """Request the time again, if this is due."""
        if self._probe is None or self.clock.exact:
            return
        if self._left == 0 and time.monotonic() >= self._next_burst:
            self._left = PROBES
            self._next_burst = time.monotonic() + PROBE_EVERY_SECONDS
        if self._left > 0:
            self._left -= 1
            self._probe()


class Sender(Ticker):
    """Sends this rank's events to rank 0, which records."""

    def __init__(
        self, tap: Tap, clock: ClockWatch, send: Callable[[Batch], object], last: Callable[[], object]
    ) -> None:
        """Create the thread, without starting it.

        Args:
            tap: the source of this rank's events.
            clock: keeps the offset of the tap's clock up to date.
            send: a function that sends a batch.
            last: called when everything has been sent.
        """
        super().__init__("farandole-timeline")
        self._tap = tap
        self._clock = clock
        self._send = send
        self._sent_all = last

    def _begin(self) -> None:
        self._clock.measure()

    def _tick(self) -> None:
        self._clock.tick()
        batch = self._tap.read()
        if batch is not None:
            self._send(batch)

    def _last(self) -> None:
        self._tick()
        self._sent_all()


class Recorder(Ticker):
    """Writes the events of all ranks into one file."""

    def __init__(
        self,
        file: TraceFile,
        trace: Trace,
        tap: Tap,
        clock: ClockWatch,
        *,
        ready: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        """Create the thread, and write the beginning of the file.

        Args:
            file: the file, which is closed at the end.
            trace: the trace that makes the records, in times of this process's clock.
            tap: the source of this rank's events.
            clock: keeps the offset of the roster's clock up to date.
            ready: called in the thread once that offset is known.
            failed: called in the thread, with the reason, if recording ends early.

        Raises:
            OSError: the beginning could not be written.
        """
        super().__init__("farandole-timeline")
        self._file = file
        self._trace = trace
        self._tap = tap
        self._clock = clock
        self._ready = ready
        self._failed = failed
        self._alive = True
        self._lock = threading.Lock()
        self._inbox: deque[tuple[int, Batch]] = deque()
        self._inbox_bytes = 0
        file.append(trace.begin())

    def receive(self, rank: int, batch: Batch) -> None:
        """Handle a message of another rank. Any thread may call this; it returns at once."""
        with self._lock:
            self._inbox.append((rank, batch))
            self._inbox_bytes += len(batch.events)
            while self._inbox_bytes > INBOX_BYTES:
                self._inbox_bytes -= len(self._inbox.popleft()[1].events)

    def _begin(self) -> None:
        self._clock.measure()
        self._ready()

    def _tick(self) -> None:
        self._clock.tick()
        batch = self._tap.read()
        with self._lock:
            others, self._inbox, self._inbox_bytes = self._inbox, deque(), 0
        records = [] if batch is None else self._trace.add(0, batch, 0)
        for rank, other in others:
            records += self._trace.add(rank, other, other.offset_ns - self._clock.clock.nanoseconds)
        self._write(records, END_BYTES)

    def _last(self) -> None:
        self._tick()
        self._write(self._trace.end(time.monotonic_ns()), 0)
        self._close()

    def _write(self, records: Sequence[str], reserve: int) -> None:
        if not self._alive:
            return
        try:
            written = self._file.append(records, reserve=reserve)
            if written < len(records):
                self._trace.retract(records[written:])
                self._end_early("the file has reached its largest size")
        except OSError as error:
            self._close()
            self._failed(f"it cannot be written to any more: {error.strerror or error}")

    def _end_early(self, reason: str) -> None:
        self._file.append(self._trace.end(time.monotonic_ns(), reason))
        self._close()
        self._failed(reason)

    def _close(self) -> None:
        if self._alive:
            self._alive = False
            self._file.close()
