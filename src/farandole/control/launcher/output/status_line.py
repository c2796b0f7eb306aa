"""The status line: which ranks are up, how fast steps are, and which ranks the others wait for.

    6/6 up · h1 2/2 · h2 2/2 · h3 2/2 · 12.3 steps/s · slowest rank 5 (h3), others waited 31%

`Status` has the known facts and renders them as text; `StatusLine` keeps it and shows it, not more often than people
can read. Waiting times reveal slow ranks: in a collective all wait for the last one, which itself hardly waits.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from farandole.control.launcher.output.console import Console
from farandole.control.launcher.output.terminal import cut
from farandole.control.roster.events import ranks

MOST_HOSTS = 8
"""Above this number of hosts, only incomplete ones are named."""
MOST_NAMED = 3
WINDOW_SECONDS = 10.0
"""Seconds over which steps and waiting are measured."""
SHORTEST_SECONDS = 1.5
"""Minimum seconds of measurement for a result."""
LEAST_DIFFERENCE = 0.1
"""Minimum difference between the longest and the shortest waiting time, as a fraction of the time, for which a rank
counts as slow."""
REDRAW_SECONDS = 0.25


class ProgressReport(NamedTuple):
    """A worker's report about its progress."""

    at: float
    """When it arrived, in seconds on the launcher's monotonic clock."""
    steps: int
    waited: float
    """Seconds that the worker has spent waiting in collectives since the world began."""


class Pace(NamedTuple):
    """The pace of a worker over the last seconds."""

    steps: int
    """Number of steps since the worker began."""
    per_second: float | None
    """The steps per second; None if not known yet."""
    waiting: float | None
    """The fraction of the time that the worker waits in collectives; None if not known yet."""


class Slowest(NamedTuple):
    """The ranks that the others wait for."""

    ranks: tuple[int, ...]
    waited: float
    """How much longer the others wait than these ranks, as a fraction of the time, on average."""


@dataclass
class Status:
    """The known facts about a running job."""

    hosts: Sequence[tuple[str, Sequence[int]]]
    """Names of hosts, each with its ranks."""
    up: set[int] = field(default_factory=set)
    reports: dict[int, tuple[ProgressReport, ...]] = field(default_factory=dict)
    """The reports of the last `WINDOW_SECONDS`, by rank, newest last."""

    def ended(self, rank: int) -> None:
        """Record that a worker no longer runs."""
        self.up.discard(rank)
        self.reports.pop(rank, None)

    def told(self, rank: int, report: ProgressReport) -> None:
        """Record a report by a worker."""
        known = self.reports.get(rank, ())
        # A worker counts from zero again in a new world.
        begun_anew = bool(known) and (report.steps < known[-1].steps or report.waited < known[-1].waited)
        recent = () if begun_anew else tuple(old for old in known if old.at > report.at - WINDOW_SECONDS)
        self.reports[rank] = (*recent, report)

    def text(self, columns: int) -> str:
        """Return the status as one line of at most this many columns."""
        size = sum(len(there) for _, there in self.hosts)
        parts = [f"{len(self.up)}/{size} up", *self._host_parts(), *self._speed_parts()]
        return cut(" · ".join(parts), columns)

    def _host_parts(self) -> list[str]:
        if len(self.hosts) == 1:
            return []
        counts = [(name, len(self.up.intersection(there)), len(there)) for name, there in self.hosts]
        if len(self.hosts) <= MOST_HOSTS:
            return [f"{name} {up}/{of}" for name, up, of in counts]
        missing = [f"{name} {up}/{of}" for name, up, of in counts if up < of]
        more = [f"{len(missing) - MOST_NAMED} more"] if len(missing) > MOST_NAMED else []
        named = ", ".join([*missing[:MOST_NAMED], *more])
        return [f"{len(self.hosts)} hosts" + (f", incomplete: {named}" if named else "")]

    @property
    def steps_per_second(self) -> float | None:
        """The median over ranks that have taken steps; None if there are none, or too few reports."""
        # Workers that wait for their first world are not slow.
        spans = [(first, last) for first, last in self._spans().values() if last.steps]
        if not spans:
            return None
        return statistics.median((last.steps - first.steps) / (last.at - first.at) for first, last in spans)

    @property
    def paces(self) -> dict[int, Pace]:
        """The pace of each worker that has reported."""
        waiting, spans = self._waiting(), self._spans()
        rates = {rank: (last.steps - first.steps) / (last.at - first.at) for rank, (first, last) in spans.items()}
        return {rank: Pace(known[-1].steps, rates.get(rank), waiting.get(rank)) for rank, known in self.reports.items()}

    @property
    def slowest(self) -> Slowest | None:
        """The ranks that the others wait for; None if no rank is slow or it is not known."""
        return find_slowest(self._waiting())

    def _waiting(self) -> dict[int, float]:
        return {
            rank: (last.waited - first.waited) / (last.at - first.at) for rank, (first, last) in self._spans().items()
        }

    def _spans(self) -> dict[int, tuple[ProgressReport, ProgressReport]]:
        """Return the first and the last report of each rank that has reported for long enough."""
        return {
            rank: (known[0], known[-1])
            for rank, known in self.reports.items()
            if known[-1].at - known[0].at >= SHORTEST_SECONDS
        }

    def _speed_parts(self) -> list[str]:
        spans = self._spans()
        if not spans:
            return []
        parts = []
        if (rate := self.steps_per_second) is not None:
            parts.append(f"{_number(rate)} steps/s")
        slowest = self.slowest
        if slowest is not None:
            parts.append(f"slowest {self._with_host(slowest.ranks)}, others waited {slowest.waited:.0%}")
        return parts

    def _with_host(self, slow: Sequence[int]) -> str:
        hosts = [name for name, there in self.hosts if set(there).intersection(slow)]
        where = f" ({hosts[0]})" if len(hosts) == 1 < len(self.hosts) else ""
        return ranks(slow) + where


def find_slowest(waiting: Mapping[int, float]) -> Slowest | None:
    """Return the ranks that the others wait for; None if no rank is slow.

    Args:
        waiting: by rank, the fraction of the time that it waits in collectives.

    Example:
        >>> find_slowest({0: 0.4, 1: 0.36, 2: 0.05})
        Slowest(ranks=(2,), waited=0.33)
    """
    if len(waiting) < 2:
        return None
    least, most = min(waiting.values()), max(waiting.values())
    if most - least < LEAST_DIFFERENCE:
        return None
    slow = tuple(sorted(rank for rank, part in waiting.items() if part - least <= (most - least) / 4))
    others = [part for rank, part in waiting.items() if rank not in slow]
    if len(slow) > len(others):
        return None  # Most ranks hardly wait, and a few wait for them: these few are fast, and no rank is slow.
    longer = statistics.fmean(others) - statistics.fmean(waiting[rank] for rank in slow)
    return Slowest(slow, min(1.0, longer))


def _number(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 1 else f"{rate:.2f}"


class StatusLine:
    """Keeps a job's status, and shows it on the console if a status line is possible. Used in the loop's thread."""

    def __init__(self, console: Console, places: Callable[[], Sequence[tuple[str, Sequence[int]]]]) -> None:
        """Show that no rank is up yet.

        Args:
            console: the console that shows it.
            places: returns the names of the current hosts, each with its ranks. Called only when the status is shown or
                read, because it looks at all workers.
        """
        self._console = console
        self._places = places
        self._status = Status(())
        self._loop = asyncio.get_running_loop()
        self._shown_at = -REDRAW_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self.changed()

    def worker_started(self, rank: int) -> None:
        """Record that a worker has started."""
        self._status.up.add(rank)
        self.changed()

    def worker_ended(self, rank: int) -> None:
        """Record that a worker has ended, or can no longer be observed."""
        self._status.ended(rank)
        self.changed()

    def progress(self, rank: int, steps: int, waited_seconds: float, at: float) -> None:
        """Record a worker's progress: its steps and waiting time since its world began."""
        if rank in self._status.up:
            self._status.told(rank, ProgressReport(at, steps, waited_seconds))
            self.changed()

    @property
    def now(self) -> Status:
        """The current status: a copy, because the console's thread reads it later."""
        return Status(self._places(), set(self._status.up), dict(self._status.reports))

    @property
    def steps_per_second(self) -> float | None:
        """The median of the ranks' steps per second; None if not known."""
        return self._status.steps_per_second

    def close(self) -> None:
        """Remove the line."""
        if self._timer is not None:
            self._timer.cancel()
        self._console.show_status(None)

    def changed(self) -> None:
        """Show the status soon, because it or the places of workers have changed."""
        if self._console.has_status and self._timer is None:
            wait = self._shown_at + REDRAW_SECONDS - self._loop.time()
            self._timer = self._loop.call_later(max(0.0, wait), self._show)

    def _show(self) -> None:
        self._timer = None
        self._shown_at = self._loop.time()
        self._console.show_status(self.now.text)
