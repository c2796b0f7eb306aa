"""The queue of jobs to reconcile: each job only once at a time, and with back-off after failures."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

from farandole.control.kubernetes.operator.backoff import rest
from farandole.control.kubernetes.operator.store import JobKey

# Seconds: changes of a job come in bursts (eight pods start), and one reconciliation handles all.
GATHER = 0.2
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.5, 60.0


class WorkQueue:
    """Jobs with the time at which each is due.

    A job is returned by `get` again only once work on it is done; additions meanwhile are not lost.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[JobKey, float] = {}
        self._heap: list[tuple[float, int, JobKey]] = []
        self._order = itertools.count()
        self._working: set[JobKey] = set()
        self._again: dict[JobKey, float] = {}
        self._failures: dict[JobKey, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: JobKey, delay: float = GATHER) -> None:
        """Schedule a job after `delay` seconds, unless it is due earlier."""
        at = self._clock() + delay
        if key in self._working:
            self._again[key] = min(at, self._again.get(key, at))
        elif at < self._due.get(key, float("inf")):
            self._due[key] = at
            heapq.heappush(self._heap, (at, next(self._order), key))
            self._wake.set()

    def add_failed(self, key: JobKey, least: float = 0.0) -> float:
        """Schedule a failed job again, with a delay that doubles each time; return the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = max(least, rest(failures, _FIRST_BACKOFF, _LONGEST_BACKOFF))
        self.add(key, delay)
        return delay

    def succeeded(self, key: JobKey) -> None:
        """Reset the delay of a job after a success."""
        self._failures.pop(key, None)

    def done(self, key: JobKey) -> None:
        """Record the end of work on a job."""
        self._working.discard(key)
        at = self._again.pop(key, None)
        if at is not None:
            self.add(key, max(0.0, at - self._clock()))

    async def get(self) -> tuple[JobKey, float]:
        """Wait for a job that is due; return it with the time at which it was due."""
        while True:
            now = self._clock()
            while self._heap and self._stale(self._heap[0]):
                heapq.heappop(self._heap)
            if self._heap and self._heap[0][0] <= now:
                at, _, key = heapq.heappop(self._heap)
                del self._due[key]
                self._working.add(key)
                return key, at
            await self._sleep(self._heap[0][0] - now if self._heap else None)

    def _stale(self, item: tuple[float, int, JobKey]) -> bool:
        return self._due.get(item[2]) != item[0]

    async def _sleep(self, seconds: float | None) -> None:
        self._wake.clear()
        # Not wait_for: before Python 3.12, it loses a cancellation that arrives together with the event.
        timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()
