"""EASY backfill: the first job that does not fit is promised a start, and what does not delay it may go before it.

Lifka 1995, "The ANL/IBM SP Scheduling System". The promise is the earliest time at which enough slots of one type are
free if all jobs end as expected. Another job may start now if it ends by then, or uses slots that the promise leaves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from farandole.scheduler.admission.expected_start import expected_start
from farandole.scheduler.job import JobView
from farandole.scheduler.room import Grant, Room, runs_on


class Promise(NamedTuple):
    """When a job will start at the latest, on which type, and how many slots are left there then."""

    start: float
    type: str
    extra: int


def admit(ranked: Sequence[JobView], room: Room, now: float) -> tuple[list[Grant], dict[str, str]]:
    """Grant slots in order, and to later jobs what does not delay the first that has to wait."""
    grants: list[Grant] = []
    reasons: dict[str, str] = {}
    head, promise = "", None
    for job in ranked:
        choices = room.choices(job)
        choice = next((one for one in choices if promise is None or _is_harmless(job, one, promise, now)), None)
        if choice is not None:
            grants.append(room.grant(job, *choice))
            if promise is not None and choice[0] == promise.type and not _ends_by(job, promise.start, now):
                promise = promise._replace(extra=promise.extra - choice[1])
        elif not room.waits_for_room(job):
            reasons[job.name] = room.why_not(job)
        elif promise is None and (promise := _promise(job, grants, room, now)) is not None:
            head = job.name
            reasons[job.name] = room.why_not(job) + expected_start(promise.start, now)
        else:
            reasons[job.name] = f"waits: it would delay {head}, which is before it" if head else room.why_not(job)
    return grants, reasons


def _is_harmless(job: JobView, choice: tuple[str, int], promise: Promise, now: float) -> bool:
    type_, slots = choice
    return type_ != promise.type or slots <= promise.extra or _ends_by(job, promise.start, now)


def _ends_by(job: JobView, end: float, now: float) -> bool:
    remaining = job.remaining(now)
    return remaining is not None and now + remaining <= end


def _promise(job: JobView, grants: Sequence[Grant], room: Room, now: float) -> Promise | None:
    """Return when a job can start at the latest; None if it never can."""
    promises = []
    for type_, free in room.free.items():
        if not runs_on(job, type_):
            continue
        ends = sorted((_end(grant.job, now), grant.slots) for grant in grants if grant.type == type_)
        at = now
        for end, slots in [(now, 0), *ends]:
            at, free = max(at, end), free + slots
            if free >= job.slots:
                promises.append(
                    Promise(at, type_, free - job.slots if at < math.inf else _after_all(room, grants, job, type_))
                )
                break
    return min(promises, key=lambda promise: promise.start, default=None)


def _after_all(room: Room, grants: Sequence[Grant], job: JobView, type_: str) -> int:
    """Return how many slots of a type are left beside a job when everything that runs has ended, who knows when."""
    return room.free[type_] + sum(grant.slots for grant in grants if grant.type == type_) - job.slots


def _end(job: JobView, now: float) -> float:
    remaining = job.remaining(now)
    return math.inf if remaining is None else now + remaining
