"""The history of a job, for display: its worlds, losses, joins and stalls."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from farandole.base.display.wording import count
from farandole.base.wire.rendezvous import Progress
from farandole.control.jobs.view import Moment
from farandole.control.launcher.slots.job_state import JobState
from farandole.control.launcher.supervise.workers import Workers
from farandole.control.roster.events import Announce

MOST_MOMENTS = 1000
# Number of moments left to a successor: they are written often, on Kubernetes into an object of limited size.
SAVED_MOMENTS = 50


@dataclass(frozen=True)
class SavedHistory:
    """The part of the history that a successor of the launcher needs."""

    moments: tuple[Moment, ...] = ()
    losses: int = 0
    joins: int = 0
    stalls: int = 0
    stalls_by_worker: Mapping[int, int] = field(default_factory=dict)


class JobHistory:
    """Keeps the latest moments of a job, and counts all of them. Used in the loop's thread.

    Attributes:
        losses, joins, stalls: numbers of losses, joins and stalls.
        reports: the last progress report of each worker.

    Args:
        clock: returns the time of day, in seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.losses = self.joins = self.stalls = 0
        self.reports: dict[int, Progress] = {}
        self._clock = clock
        self._stalls_by_worker: dict[int, int] = {}
        self._moments: collections.deque[Moment] = collections.deque(maxlen=MOST_MOMENTS)

    @property
    def moments(self) -> tuple[Moment, ...]:
        """The latest moments, newest last."""
        return tuple(self._moments)

    def begins(self, size: int) -> None:
        """Record that all workers of a job of fixed size are about to be started."""
        self._add("world", world_sentence(size, 1), size, 1)

    def world_begins(self, world: Announce, workers: Workers, at: float) -> None:
        """Record a world of an elastic job, with its losses and joins.

        Args:
            world: the world, as it was announced.
            workers: the workers of the job; the ends of the lost ones should be known.
            at: when the world began, in seconds since 1970.
        """
        size, generation = len(world.workers), world.generation
        for lost in world.lost:
            self.losses += 1
            how = workers.how_it_ended(lost) or lost.how
            who = f"rank {lost.rank} (worker {lost.worker} on {workers.host_of(lost.worker)})"
            self._add("loss", f"{who}: {how}", size, generation, at)
        for left in world.finished:
            self._add("finish", f"rank {left.rank} (worker {left.worker}): {left.how}", size, generation, at)
        if generation > 1:
            for rank, before in enumerate(world.previous):
                if before < 0:
                    self.joins += 1
                    worker = world.workers[rank]
                    where = workers.host_of(worker)
                    self._add("join", f"worker {worker} on {where} joins as rank {rank}", size, generation, at)
        self._add("world", world_sentence(size, generation), size, generation, at)

    def progress(self, worker: int, told: Progress, workers: Workers, state: JobState) -> None:
        """Record a worker's progress report."""
        self.reports[worker] = told
        more = told.stalls - self._stalls_by_worker.get(worker, 0)
        self._stalls_by_worker[worker] = told.stalls
        if more > 0:
            self.stalls += more
            rank = f"rank {state.world.index(worker)}" if worker in state.world else "no rank now"
            where = f" at {told.stalled_at}" if told.stalled_at else ""
            text = f"others wait for worker {worker} ({rank}, on {workers.host_of(worker)}){where}"
            self._add("stall", text, len(state.world), state.generation)

    def saved(self) -> SavedHistory:
        """Return the history for a successor of this launcher: all counts, and the latest moments."""
        moments = self.moments[-SAVED_MOMENTS:]
        return SavedHistory(moments, self.losses, self.joins, self.stalls, dict(self._stalls_by_worker))

    def go_on_from(self, saved: SavedHistory) -> None:
        """Continue the history of an earlier launcher of this job."""
        self.losses, self.joins, self.stalls = saved.losses, saved.joins, saved.stalls
        self._stalls_by_worker = dict(saved.stalls_by_worker)
        self._moments.extend(saved.moments)

    def forget(self, workers: Workers) -> None:
        """Keep only the reports of these workers."""
        for worker in self.reports.keys() - workers.by_number.keys():
            del self.reports[worker]

    def _add(self, kind: str, text: str, size: int, generation: int, at: float | None = None) -> None:
        self._moments.append(Moment(self._clock() if at is None else at, kind, text, size, generation))


def world_sentence(size: int, generation: int) -> str:
    """Return a sentence about the beginning of a world.

    Example:
        >>> world_sentence(1, 4)
        '1 worker goes on as generation 4'
    """
    singular, plural = ("begins", "begin") if generation == 1 else ("goes on", "go on")
    return f"{count(size, 'worker')} {singular if size == 1 else plural} as generation {generation}"
