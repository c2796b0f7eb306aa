"""The timeline of one world: when it is recorded, and each rank's part in it.

Rank 0 records into a file. The other ranks send it their events while it records: it is enough if the user starts a
timeline on rank 0, and harmless to start it on all ranks. Messages (`worker.observe.timeline_messages`) are relayed by
the roster; without one, the world is one worker.

Threads: the user's, which start and stop timelines; the roster client's, which receives messages; and the one that
records or sends. A condition protects their shared data. No thread sends a message, or waits for a thread, while it
holds the condition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

from farandole.base.trace.file import ArrayFile
from farandole.base.trace.perfetto import PacketFile, is_perfetto
from farandole.base.wire.clock import ClockOffset
from farandole.base.wire.rendezvous import RendezvousError
from farandole.errors import TimelineError
from farandole.worker.core.session import Session
from farandole.worker.core.user_log import tell_user
from farandole.worker.observe.recording import ClockWatch, Recorder, Sender
from farandole.worker.observe.tap import RING_EVENTS, Tap
from farandole.worker.observe.timeline_messages import (
    CODEC,
    LAST_SERIAL,
    Answer,
    Ask,
    Batch,
    Final,
    Here,
    Message,
    Off,
    On,
)
from farandole.worker.observe.trace import Trace

RECORDER = 0
MEGABYTE = 1024 * 1024
# How long rank 0 waits for what the others have still to send, and they for its word about the file. Only a worker that
# is stopped, or busy in native code that holds Python's lock, takes more than a tenth of a second.
ANSWER_SECONDS = 2.0
# How long the end of writing or sending may take.
JOIN_SECONDS = 10.0
# The number of events that each rank may send at once, however many ranks share the limit.
LEAST_EVENTS = 512


class Timeline(Protocol):
    """A rank's part in the timeline."""

    def opened(self) -> None:
        """Called when messages can be received."""

    def start(self, path: str, mark_cycles: bool) -> None:
        """Begin to record, or raise TimelineError."""

    def stop(self) -> None:
        """End the timeline, and return when all of it is written. No-op if there is none."""

    def heard(self, sender: int, message: Message) -> None:
        """Handle a message of another rank, quickly: in the roster client's thread."""

    def gone(self, rank: int) -> None:
        """Record that another rank no longer listens."""

    def close(self) -> None:
        """Leave the world."""


class Post:
    """Sends messages to other ranks. A message that cannot be sent is lost: then the launcher has gone, and the job
    ends.
    """

    def __init__(self, session: Session) -> None:
        """Use the session's roster, if it has one."""
        self._roster = session.roster
        self._world = session.world

    def tell(self, ranks: Sequence[int], message: Message) -> bool:
        """Send a message to ranks; return whether that was possible."""
        try:
            for rank in ranks:
                if self._roster is not None:
                    self._roster.relay(self._world.worker(rank), CODEC.encode(message))
        except RendezvousError:
            return False
        return True

    def probe(self) -> None:
        """Request the roster's time."""
        try:
            if self._roster is not None:
                self._roster.probe()
        except RendezvousError:
            return


class Recording:
    """The timeline on rank 0."""

    def __init__(self, session: Session, post: Post, clock: ClockWatch) -> None:
        """Create the object; recording starts later."""
        self._session = session
        self._post = post
        self._clock = clock
        self._generation = session.world.generation
        self._others = tuple(rank for rank in range(session.world.size) if rank != RECORDER)
        self._turn = threading.Lock()
        """Held by the user's thread that starts or stops a timeline."""
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._recorder: Recorder | None = None
        self._serial = 0
        self._start_ns: int | None = None
        """The time at which the current timeline began, by the roster's clock; None if it is unknown, or none is being
        recorded."""
        self._announced = 0
        """The last timeline that was announced to the others."""
        self._calls = 0
        self._failure = ""
        """The reason why the last call failed."""
        self._asked: dict[int, int] = {}
        """For each rank, the number of its call that waits for an answer about the file."""
        self._finals = dict.fromkeys(self._others, 0)
        """For each rank, the last timeline of which it has sent everything."""

    def opened(self) -> None:
        """Do nothing until the user starts a timeline: the other ranks announce themselves."""

    def start(self, path: str, mark_cycles: bool) -> None:
        """Begin to record into a new file; end the previous timeline, if there is one."""
        with self._turn:
            self._end()
            failure = ""
            try:
                self._begin(path, mark_cycles)
            except TimelineError as error:
                failure = str(error)
                raise
            finally:
                self._conclude(failure)

    def start_with_the_world(self, path: str, mark_cycles: bool) -> None:
        """Begin to record because of the settings, rather than a call of the user."""
        with self._turn:
            self._begin(path, mark_cycles)

    def stop(self) -> None:
        """End the timeline, and return when all events of all ranks until now are in the file."""
        with self._turn:
            self._end()

    def heard(self, sender: int, message: Message) -> None:
        """Handle a message of another rank."""
        reply: Message | None = None
        with self._changed:
            if isinstance(message, Batch) and self._recorder is not None and message.serial == self._serial:
                self._recorder.receive(sender, message)
            elif isinstance(message, Final):
                self._finals[sender] = max(self._finals.get(sender, 0), message.serial)
                self._changed.notify_all()
            elif isinstance(message, Here):
                # An earlier message may have come before this rank listened; then it was counted as one that has ended.
                self._finals[sender] = 0
                if self._start_ns is not None:
                    reply = On(self._generation, self._serial, self._start_ns)
            elif isinstance(message, Ask):
                self._asked[sender] = message.calls
        if reply is not None:
            self._post.tell([sender], reply)
        if isinstance(message, Ask):
            self._answer()

    def gone(self, rank: int) -> None:
        """Record that a rank no longer listens, and will send nothing more."""
        with self._changed:
            self._finals[rank] = LAST_SERIAL
            self._changed.notify_all()

    def close(self) -> None:
        """End the timeline."""
        self.stop()

    def _begin(self, path: str, mark_cycles: bool) -> None:
        try:
            recorder, serial = self._open(path, mark_cycles)
        except OSError as error:
            raise TimelineError(
                f"rank {RECORDER} cannot write the timeline to {path!r}: {error.strerror or error}. "
                "Give a path in a folder that exists, and may be written to, on its machine."
            ) from error
        with self._changed:
            self._recorder, self._serial = recorder, serial
            recorder.start()
            # First all ranks are asked for their events; then the caller learns that the timeline is on.
            self._changed.wait_for(lambda: self._announced == serial, ANSWER_SECONDS)

    def _open(self, path: str, mark_cycles: bool) -> tuple[Recorder, int]:
        kind = PacketFile if is_perfetto(path) else ArrayFile
        file = kind(path, max(1, self._session.settings.timeline_limit_mb) * MEGABYTE)
        engine, start_ns, serial = self._session.engine, time.monotonic_ns(), self._serial + 1
        trace = Trace(
            start_ns,
            time.time_ns() // 1000,
            engine.algorithms(),
            size=self._session.world.size,
            mark_cycles=mark_cycles,
        )
        # This rank's events keep the times of its clock, which is the trace's.
        tap = Tap(engine, ClockOffset(), generation=self._generation, serial=serial, start_ns=start_ns)

        def ready() -> None:
            with self._changed:
                start_there_ns = self._start_ns = start_ns + self._clock.clock.nanoseconds
            self._post.tell(self._others, On(self._generation, serial, start_there_ns))
            with self._changed:
                self._announced = serial
                self._changed.notify_all()

        def failed(reason: str) -> None:
            tell_user("warning", f"the timeline {path} ends here: {reason}.", RECORDER)
            self._post.tell(self._others, Off(self._generation, serial))

        try:
            return Recorder(file, trace, tap, self._clock, ready=ready, failed=failed), serial
        except OSError:
            file.close()
            raise

    def _conclude(self, failure: str) -> None:
        with self._changed:
            self._calls += 1
            self._failure = failure
        self._answer()

    def _answer(self) -> None:
        """Answer the ranks that asked about a call which this rank has now made as well."""
        with self._changed:
            if self._recorder is None and not self._failure:
                return
            due = {rank: calls for rank, calls in self._asked.items() if calls <= self._calls}
            for rank in due:
                del self._asked[rank]
            failure = self._failure
        for rank, calls in due.items():
            self._post.tell([rank], Answer(self._generation, calls, failure))

    def _end(self) -> None:
        with self._changed:
            recorder, serial = self._recorder, self._serial
            self._failure = ""
            if recorder is None:
                return
        if self._post.tell(self._others, Off(self._generation, serial)):
            with self._changed:
                self._changed.wait_for(lambda: min(self._finals.values(), default=serial) >= serial, ANSWER_SECONDS)
        recorder.finish()
        recorder.join(JOIN_SECONDS)
        with self._changed:
            self._recorder = self._start_ns = None


class Sending:
    """The timeline on every rank except 0."""

    def __init__(self, session: Session, post: Post, clock: ClockWatch) -> None:
        """Create the object; sending starts later."""
        self._session = session
        self._post = post
        self._clock = clock
        self._generation = session.world.generation
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._sender: Sender | None = None
        self._finishing: list[Sender] = []
        """The senders that send the rest of their timeline."""
        self._over = 0
        """The last timeline that has ended."""
        self._calls = 0
        self._answers: dict[int, str] = {}
        """The answer of rank 0 to each call."""

    def opened(self) -> None:
        """Announce this rank to rank 0, which may already be recording."""
        self._post.tell([RECORDER], Here(self._generation))

    def start(self, path: str, mark_cycles: bool) -> None:
        """Wait until rank 0 records; it decides the path and everything else."""
        with self._changed:
            self._calls += 1
            calls = self._calls
        self._post.tell([RECORDER], Ask(self._generation, calls))
        with self._changed:
            self._changed.wait_for(lambda: calls in self._answers, ANSWER_SECONDS)
            failure = self._answers.pop(calls, None)
        if failure:
            raise TimelineError(failure)
        if failure is None:
            tell_user(
                "warning",
                f"start_timeline({path!r}): rank {RECORDER}, which writes the file, has not called it yet.",
                self._session.world.rank,
            )

    def stop(self) -> None:
        """Do nothing: rank 0 requests the rest of the events when it stops."""

    def heard(self, sender: int, message: Message) -> None:
        """Handle a message of rank 0."""
        if isinstance(message, On):
            self._turn_on(message)
        elif isinstance(message, Off):
            self._turn_off(message.serial)
        elif isinstance(message, Answer):
            with self._changed:
                self._answers[message.calls] = message.error
                self._changed.notify_all()

    def gone(self, rank: int) -> None:
        """Record that rank 0 has gone, so that events are no longer sent."""
        self._finish()

    def close(self) -> None:
        """Send the remaining events and the last message."""
        with self._changed:
            self._over = LAST_SERIAL
        self._finish()
        for sender in self._finishing:
            sender.join(JOIN_SECONDS)
        self._post.tell([RECORDER], Final(self._generation, LAST_SERIAL))

    def _turn_on(self, on: On) -> None:
        world = self._session.world
        with self._changed:
            if on.serial <= self._over or self._sender is not None:
                return
            tap = Tap(
                self._session.engine,
                self._clock.clock,
                generation=self._generation,
                serial=on.serial,
                start_ns=on.start_ns,
                limit=max(LEAST_EVENTS, RING_EVENTS // world.size),
            )
            self._sender = Sender(
                tap,
                self._clock,
                send=lambda batch: self._post.tell([RECORDER], batch),
                last=lambda: self._post.tell([RECORDER], Final(self._generation, on.serial)),
            )
            self._sender.start()

    def _turn_off(self, serial: int) -> None:
        with self._changed:
            self._over = max(self._over, serial)
        if not self._finish():
            # There is no sender any more that would announce it.
            self._post.tell([RECORDER], Final(self._generation, serial))

    def _finish(self) -> bool:
        """Make the sender send the remaining events and the last message; return whether there is a sender."""
        with self._changed:
            sender, self._sender = self._sender, None
            self._finishing = [each for each in self._finishing if each.is_alive()]
            if sender is None:
                return bool(self._finishing)
            self._finishing.append(sender)
        sender.finish()
        return True
