"""Conservative backfill: every waiting job gets a reservation, and no job may delay an earlier reservation.

Mu'alem and Feitelson 2001, "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM
SP2 with Backfilling". A job of unknown duration is assumed to run for ever. If very many jobs wait, only the first of
them get reservations, and the others wait until they are among the first.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from farandole.control.scheduler.admission.expected_start import expected_start
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.room import Admitted, Grant, Room, runs_on

PLANNED = 500
"""Maximum number of waiting jobs that get a reservation: for more, a decision would take too long."""


class FreeOverTime:
    """The number of free slots of one type from now on: a step function of time.

    Args:
        now: present time in seconds.
        free: number of slots that are free now.
        ends: times at which more slots become free, each with their number.
    """

    def __init__(self, now: float, free: int, ends: Iterable[tuple[float, int]] = ()) -> None:
        self._times = [now]
        self._free = [free]
        for end, slots in sorted(ends):
            if end == self._times[-1]:
                self._free[-1] += slots
            elif end < math.inf:
                self._times.append(end)
                self._free.append(self._free[-1] + slots)
        self._known: dict[int, tuple[list[float], list[float]]] = {}
        """Earlier requests by number of slots: their durations and the earliest starts found for them, both ascending.

        `take` frees no slots, so a start never becomes earlier, and a larger or longer request never starts earlier
        than a smaller one. So a search begins at the latest known start of a request that is not larger.
        """

    def take(self, start: float, end: float, slots: int) -> None:
        """Reserve slots from `start` to `end`."""
        first, last = self._split(start), self._split(end) if end < math.inf else len(self._times)
        for index in range(first, last):
            self._free[index] -= slots

    def earliest(self, slots: int, duration: float) -> float:
        """Return the earliest time from which `slots` slots are free for `duration` seconds; infinity: never."""
        times, free = self._times, self._free
        at = bisect_left(times, self._not_before(slots, duration))
        while True:
            while at < len(times) and free[at] < slots:
                at += 1
            if at == len(times):
                start = math.inf
                break
            end, last = times[at] + duration, at + 1
            while last < len(times) and times[last] < end and free[last] >= slots:
                last += 1
            if last == len(times) or times[last] >= end:
                start = times[at]
                break
            at = last + 1
        self._remember(slots, duration, start)
        return start

    def _not_before(self, slots: int, duration: float) -> float:
        """Return a lower bound of `earliest`, from earlier requests."""
        latest = self._times[0]
        for known, (durations, starts) in self._known.items():
            index = bisect_right(durations, duration)
            if known <= slots and index:
                latest = max(latest, starts[index - 1])
        return latest

    def _remember(self, slots: int, duration: float, start: float) -> None:
        durations, starts = self._known.setdefault(slots, ([], []))
        index = bisect_left(durations, duration)
        end = bisect_right(starts, start, lo=index)
        durations[index:end], starts[index:end] = [duration], [start]

    def _split(self, time: float) -> int:
        """Return the index of the step that begins at a time."""
        index = bisect_left(self._times, time)
        if index == len(self._times) or self._times[index] != time:
            self._times.insert(index, time)
            self._free.insert(index, self._free[index - 1])
        return index


def admit(ranked: Sequence[PolicyJob], room: Room, now: float) -> Admitted:
    """Grant slots to all jobs that can start now without delaying a job before them."""
    grants: list[Grant] = []
    reasons: dict[str, str] = {}
    futures = _futures(room, now)
    for job in ranked:
        if len(reasons) == PLANNED:
            break
        duration = _duration(job, now)
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
    return Admitted(grants, reasons, lambda job: f"waits behind {PLANNED} waiting jobs")


def _futures(room: Room, now: float) -> dict[str, FreeOverTime]:
    """Return the slots over time that running jobs leave free, by type."""
    ends: dict[str, list[tuple[float, int]]] = {type_: [] for type_ in room.free}
    for job in room.kept:
        assert job.allocation is not None
        ends[job.allocation.type].append((now + _duration(job, now), job.allocation.slots))
    return {type_: FreeOverTime(now, free, ends[type_]) for type_, free in room.free.items()}


def _duration(job: PolicyJob, now: float) -> float:
    remaining = job.remaining(now)
    return math.inf if remaining is None else max(remaining, 1e-9)


def _first_start(
    job: PolicyJob, duration: float, room: Room, futures: dict[str, FreeOverTime], now: float
) -> tuple[float, str, int]:
    """Return the earliest start of a job, its type and its number of slots."""
    for type_, slots in room.choices(job) if job.min_slots <= room.most_free else ():
        if futures[type_].earliest(slots, duration) <= now:
            return now, type_, slots
    usable = [type_ for type_ in futures if runs_on(job, type_)]
    starts = [(futures[type_].earliest(job.slots, duration), type_) for type_ in usable]
    later = [start for start in starts if start[0] > now] or [(math.inf, next(iter(futures)))]
    start, type_ = min(later, key=lambda one: one[0])
    return start, type_, job.slots
