"""The observer of a session: it answers stall queries, reports progress, and keeps the timeline."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from farandole.base.trace.timeline_path import path_of_generation
from farandole.base.wire.errors import BadMessage
from farandole.base.wire.rendezvous import Absent, Heard, Probed, Relayed, RendezvousError
from farandole.errors import TimelineError
from farandole.worker.core import basics
from farandole.worker.core.session import Session
from farandole.worker.core.user_log import log_as_json, log_event, tell_user
from farandole.worker.observe.progress import ProgressReporter
from farandole.worker.observe.recording import ClockWatch
from farandole.worker.observe.stalls import StallRecord, answer_stall_queries
from farandole.worker.observe.timeline import JOIN_SECONDS, RECORDER, Post, Recording, Sending, Timeline
from farandole.worker.observe.timeline_messages import CODEC

if TYPE_CHECKING:
    from farandole.worker.observe.tuning import TuningWatch
    from farandole.worker.observe.worker_metrics import WorkerMetrics


class Observer:
    """Observes one world.

    Attributes:
        timeline: this rank's part in the timeline.
    """

    def __init__(self, session: Session, stalls: StallRecord, metrics: str = "") -> None:
        """Start observing; in a world of one, there is no other rank to listen to or to answer.

        Args:
            session: the session of the world.
            stalls: the record of stalls that this worker has caused, in all its worlds.
            metrics: the address at which this worker serves its metrics; "": it serves none.
        """
        world, settings, post = session.world, session.settings, Post(session)
        self._generation = world.generation
        self._workers = world.workers
        self._roster = session.roster
        self._clock = ClockWatch(post.probe if world.size > 1 and session.roster is not None else None)
        recording = Recording(session, post, self._clock) if world.rank == RECORDER else None
        self.timeline: Timeline = recording or Sending(session, post, self._clock)
        if world.size > 1 and session.roster is not None:
            try:
                session.roster.listen(self._heard)
            except RendezvousError:
                pass  # The launcher has ended. What depends on it will report that with a better message.
        self.timeline.opened()
        self._tuning = _watch_tuning(session) if settings.autotune and world.rank == 0 else None
        self._progress: ProgressReporter | None = None
        if settings.progress and session.roster is not None:
            self._progress = ProgressReporter(session, session.roster, stalls, metrics)
        self._answering: threading.Thread | None = None
        if world.size > 1 and settings.stall_warning_seconds and not settings.stall_check_disable:
            # The thread that calls init() is the one that trains.
            self._answering = answer_stall_queries(session.engine, threading.current_thread(), stalls)
        if recording is not None and settings.timeline is not None and settings.timeline.upper() != "DYNAMIC":
            try:
                recording.start_with_the_world(
                    path_of_generation(settings.timeline, world.generation), settings.timeline_mark_cycles
                )
            except TimelineError as error:
                tell_user("warning", f"{error} Training goes on without a timeline.", RECORDER)

    def close(self) -> None:
        """Stop everything that was started here, except answers to stall queries, which end with the world."""
        self.timeline.close()
        if self._roster is not None:
            self._roster.ignore(self._heard)
        if self._tuning is not None:
            self._tuning.close()
        if self._progress is not None:
            self._progress.close()

    def join(self) -> None:
        """Wait until no thread of this observer uses the engine; until then, the engine must not be destroyed."""
        if self._progress is not None:
            self._progress.join(JOIN_SECONDS)
        if self._answering is not None:
            self._answering.join(JOIN_SECONDS)

    def _heard(self, message: Heard) -> None:
        if isinstance(message, Probed):
            self._clock.measured(message)
        elif isinstance(message, Absent):
            self.timeline.gone(self._rank_of(message.worker))
        elif isinstance(message, Relayed):
            try:
                told = CODEC.decode(message.payload)
            except BadMessage:
                return  # The sender has another version of farandole.
            if told.generation == self._generation:
                self.timeline.heard(self._rank_of(message.sender), told)

    def _rank_of(self, worker: int) -> int:
        return self._workers.index(worker) if worker in self._workers else worker


def _watch_tuning(session: Session) -> TuningWatch:
    # Imported when needed: every job starts, and few of them tune.
    from farandole.worker.observe.tuning import TuningWatch

    return TuningWatch(session)


# Levels by the core's numbers; 0 means not set, which is equal to warning.
_LEVELS = ("WARNING", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class _Companion:
    """Creates an observer for each session."""

    def __init__(self) -> None:
        self.observer: Observer | None = None
        self._stalls = StallRecord()
        self._metrics: WorkerMetrics | None = None

    def opened(self, session: Session) -> None:
        world = session.world
        if session.settings.log_format == "json":
            log_as_json(_LEVELS[session.settings.log_level])
        log_event("info", f"rank {world.rank} of {world.size} in generation {world.generation}", world.rank)
        if session.settings.metrics is not None and self._metrics is None:
            self._metrics = _serve_metrics(session, self._stalls)
        if self._metrics is not None:
            self._metrics.enter(session)
        self.observer = Observer(session, self._stalls, "" if self._metrics is None else self._metrics.address)

    def closing(self, session: Session) -> None:
        if self._metrics is not None:
            self._metrics.leave()
        if self.observer is not None:
            self.observer.close()

    def closed(self) -> None:
        observer, self.observer = self.observer, None
        if observer is not None:
            observer.join()
        if self._metrics is not None and basics.session_if_any() is None:
            self._metrics.close()
            self._metrics = None

    def forgotten(self) -> None:
        self.observer = self._metrics = None


def _serve_metrics(session: Session, stalls: StallRecord) -> WorkerMetrics | None:
    # Imported when needed: few jobs serve metrics.
    from farandole.worker.observe.worker_metrics import serve_worker_metrics

    return serve_worker_metrics(session, stalls)


_companion = _Companion()
basics.accompany(_companion)


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Begin to record the operations of all ranks in a file that chrome://tracing and ui.perfetto.dev can show.

    Rank 0 writes the file. Call this on rank 0, or on all ranks; the arguments of the others are ignored. If a timeline
    is already being recorded, it ends, and the new one begins.

    Args:
        file_path: the path of the file, which is created or emptied. It is valid JSON at every moment.
        mark_cycles: whether to mark every round of agreement of rank 0 as well.

    Raises:
        ValueError: not initialized.
        TimelineError: the file cannot be written; raised on every rank that called.

    Example:
        >>> import farandole.torch as hvd
        >>> hvd.start_timeline("timeline.json")
    """
    _timeline().start(os.fspath(file_path), mark_cycles)


def stop_timeline() -> None:
    """End the timeline, and return when all of it is in the file. No-op if none is being recorded.

    Call it on rank 0, or on all ranks: only rank 0's call has an effect.

    Raises:
        ValueError: not initialized.
    """
    _timeline().stop()


def _timeline() -> Timeline:
    basics.current()
    observer = _companion.observer
    if observer is None:
        raise TimelineError("this process was forked from one that has a timeline; it has none of its own.")
    return observer.timeline
