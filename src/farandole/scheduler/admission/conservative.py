"""Conservative backfill: every waiting job is promised a start, and none may delay a promise made before.

Mu'alem and Feitelson 2001, "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM
SP2 with Backfilling". A job whose duration nobody knows is taken to go on for ever.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from farandole.scheduler.admission.expected_start import expected_start
from farandole.scheduler.job import JobView
from farandole.scheduler.room import Grant, Room, runs_on


class FreeOverTime:
    """How many slots of one type are free from now on: a step function."""

    def __init__(self, now: float, free: int) -> None:
        self._times = [now]
        self._free = [free]

    def take(self, start: float, end: float, slots: int) -> None:
        """Take slots in a span of time."""
        first, last = self._split(start), self._split(end) if end < math.inf else len(self._times)
        for index in range(first, last):
            self._free[index] -= slots

    def earliest(self, slots: int, duration: float) -> float:
        """Return the earliest time from which so many slots are free for so long; infinity if there is none."""
        start = None
        for time, free in zip(self._times, self._free, strict=True):
            if start is not None and time >= start + duration:
                return start
            if free < slots:
                start = None
            elif start is None:
                start = time
        return math.inf if start is None else start

    def _split(self, time: float) -> int:
        """Return the index of the step that begins at a time."""
        index = bisect_left(self._times, time)
        if index == len(self._times) or self._times[index] != time:
            self._times.insert(index, time)
            self._free.insert(index, self._free[index - 1])
        return index


def admit(ranked: Sequence[JobView], room: Room, now: float) -> tuple[list[Grant], dict[str, str]]:
    """Grant slots to all jobs that can start now without delaying one before them."""
    grants: list[Grant] = []
    reasons: dict[str, str] = {}
    futures = {type_: FreeOverTime(now, free) for type_, free in room.free.items()}
    for job in ranked:
        remaining = job.remaining(now)
        duration = math.inf if remaining is None else max(remaining, 1e-9)
        start, type_, slots = _first_start(job, duration, room, futures, now)
        if start > now and not room.waits_for_room(job):
            reasons[job.name] = room.why_not(job)
            continue
        if start < math.inf:
            futures[type_].take(start, start + duration, slots)
        if start <= now:
            grants.append(room.grant(job, type_, slots))
        else:
            reasons[job.name] = room.why_not(job) + expected_start(start, now)
    return grants, reasons


def _first_start(
    job: JobView, duration: float, room: Room, futures: dict[str, FreeOverTime], now: float
) -> tuple[float, str, int]:
    """Return when a job can start first, on which type and with how many slots."""
    for type_, slots in room.choices(job):
        if futures[type_].earliest(slots, duration) <= now:
            return now, type_, slots
    usable = [type_ for type_ in futures if runs_on(job, type_)]
    starts = [(futures[type_].earliest(job.slots, duration), type_) for type_ in usable]
    later = [start for start in starts if start[0] > now] or [(math.inf, next(iter(futures)))]
    start, type_ = min(later, key=lambda one: one[0])
    return start, type_, job.slots
