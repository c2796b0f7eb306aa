"""A snapshot of one job, as plain data for dashboards and metrics."""

from __future__ import annotations

import msgspec


class WorkerView(msgspec.Struct, frozen=True):
    """A snapshot of one worker."""

    worker: int
    """The worker's permanent number; in a job of fixed size also its rank."""
    rank: int | None = None
    """Rank in the current world; None: not a member."""
    host: str = ""
    runs: bool = True
    """Whether its process is running, as far as is known."""
    end: str = ""
    """The end of its process, in a few words."""
    steps: int = 0
    per_second: float | None = None
    """Steps per second over the last 10 s; None: not known yet."""
    waiting: float | None = None
    """Fraction of the last 10 s that it waited in collectives; None: not known yet."""
    stalls: int = 0
    """Number of stall warnings of other workers that waited for it."""
    stalled_at: str = ""
    """Its position in the program at the latest of these warnings."""
    metrics: str = ""
    """`host:port` of its metrics endpoint; "": none."""


class Moment(msgspec.Struct, frozen=True):
    """One entry of a job's history."""

    at: float
    """Seconds since 1970."""
    kind: str
    """`world`, `loss`, `join`, `finish` or `stall`; at places other than `local`: `event`."""
    text: str
    """Description for people."""
    size: int = 0
    """Number of workers in the resulting world, for the first four kinds."""
    generation: int = 0


class OutputLine(msgspec.Struct, frozen=True):
    """One line that a worker or the launcher printed."""

    number: int
    worker: int | None
    """The worker's number; None: the launcher."""
    error: bool
    """Whether it was printed to standard error."""
    text: str


class JobView(msgspec.Struct, frozen=True):
    """A snapshot of one job: the record behind a whole page of the dashboard, with a field for each part of it."""

    name: str = ""
    at: float = 0.0
    """Time of the snapshot, in seconds since 1970."""
    state: str = ""
    """The reason why the job waits; "": it is not waiting."""
    generation: int = 0
    size: int = 0
    """Number of workers in the current world."""
    per_second: float | None = None
    """Steps per second, the median over workers; None: not known yet."""
    slow: tuple[int, ...] = ()
    """Numbers of the stragglers: the workers that the others wait for."""
    slow_waiting: float = 0.0
    """Fraction of time that the others wait in collectives beyond what the stragglers wait."""
    workers: tuple[WorkerView, ...] = ()
    """Members of the world by rank, then all other known workers."""
    moments: tuple[Moment, ...] = ()
    """The latest entries of the history, the newest last."""
    losses: int = 0
    joins: int = 0
    stalls: int = 0
    timeline: str = ""
    """Path of the timeline file on rank 0's host; "": none."""
    lines: tuple[OutputLine, ...] = ()
    lines_next: int = 0
    """Number of the line that follows `lines`, to request more."""
