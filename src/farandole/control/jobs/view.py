"""Everything that can be seen of one job at one moment, as data: what dashboards and metrics are made of."""

from __future__ import annotations

import msgspec


class WorkerView(msgspec.Struct, frozen=True):
    """One worker."""

    worker: int
    """Its number, which it keeps; in a job of fixed size also its rank."""
    rank: int | None = None
    """In the current world; None: it is in none."""
    host: str = ""
    runs: bool = True
    """Whether its process runs, as far as is known."""
    end: str = ""
    """How it ended, in a few words."""
    steps: int = 0
    per_second: float | None = None
    """Steps, over the last 10 s; None while that is not known."""
    waiting: float | None = None
    """The part of the last 10 s that it waited in collectives; None while that is not known."""
    stalls: int = 0
    """How often others have waited for it so long that they were warned."""
    stalled_at: str = ""
    """Where in its program it was the last time."""
    metrics: str = ""
    """`host:port` where it serves its metrics, if it does."""


class Moment(msgspec.Struct, frozen=True):
    """Something that happened to a job."""

    at: float
    """In seconds since 1970."""
    kind: str
    """`world`, `loss`, `join`, `finish` or `stall`; of other places than `local`: `event`."""
    text: str
    """For people."""
    size: int = 0
    """Of the world that it led to, for the first four kinds."""
    generation: int = 0


class OutputLine(msgspec.Struct, frozen=True):
    """One line that a worker, or the launcher, has printed."""

    number: int
    worker: int | None
    """None: the launcher."""
    error: bool
    """Whether it was standard error."""
    text: str


class JobView(msgspec.Struct, frozen=True):
    """What can be seen of a job.

    It is the record of a whole page, so that it has a field for each part of it.
    """

    name: str = ""
    at: float = 0.0
    """When this was seen, in seconds since 1970."""
    state: str = ""
    """For what the job waits; "" when it goes on."""
    generation: int = 0
    size: int = 0
    """Workers of the current world."""
    per_second: float | None = None
    """Steps: the median over workers."""
    slow: tuple[int, ...] = ()
    """Numbers of the workers for which the others wait."""
    slow_waiting: float = 0.0
    """Which part of the time the others wait longer than those do."""
    workers: tuple[WorkerView, ...] = ()
    """Those of the world by rank, then all others that are known."""
    moments: tuple[Moment, ...] = ()
    """The last ones, the newest at the end."""
    losses: int = 0
    joins: int = 0
    stalls: int = 0
    timeline: str = ""
    """The file in which it is kept, on rank 0's host; "" when there is none."""
    lines: tuple[OutputLine, ...] = ()
    lines_next: int = 0
    """The number from which to ask for more."""
