"""EASY backfill: the first job that does not fit gets a reservation, and later jobs may start if they do not delay it.

Lifka 1995, "The ANL/IBM SP Scheduling System". The reservation is the earliest time at which enough slots of one type
are free if all jobs end as expected. Another job may start now if it ends by then, or uses slots that are not reserved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from farandole.control.scheduler.admission.expected_start import expected_start
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.room import Admitted, Grant, Room, runs_on


class Promise(NamedTuple):
    """The reservation of the first job that has to wait."""

    start: float
    """Latest time of its start."""
    type: str
    extra: int
    """Number of slots of this type that are left at that time."""


def admit(ranked: Sequence[PolicyJob], room: Room, now: float) -> Admitted:
    """Grant slots in order, and to later jobs if they do not delay the first job that has to wait."""
    grants: list[Grant] = []
    reasons: dict[str, str] = {}
    head, promise = "", None
    most = room.most_free
    for job in ranked:
        if promise is not None and (job.min_slots > most or _is_harmful(job, promise, room, now)):
            continue
        choices = room.choices(job)
        choice = next((one for one in choices if promise is None or _is_harmless(job, one, promise, now)), None)
        if choice is not None:
            grants.append(room.grant(job, *choice))
            most = room.most_free
            if promise is not None and choice[0] == promise.type and not _ends_by(job, promise.start, now):
                promise = promise._replace(extra=promise.extra - choice[1])
        elif not room.waits_for_room(job):
            reasons[job.name] = room.why_not(job)
        elif promise is None:
            reasons[job.name] = room.why_not(job)
            promise = _promise(job, grants, room, now)
            if promise is not None:
                head = job.name
                reasons[head] += expected_start(promise.start, now)

    def otherwise(job: PolicyJob) -> str:
        waits = head and room.waits_for_room(job)
        return f"waits: it would delay {head}, which comes first" if waits else room.why_not(job)

    return Admitted(grants, reasons, otherwise)


def _is_harmless(job: PolicyJob, choice: tuple[str, int], promise: Promise, now: float) -> bool:
    type_, slots = choice
    return type_ != promise.type or slots <= promise.extra or _ends_by(job, promise.start, now)


def _is_harmful(job: PolicyJob, promise: Promise, room: Room, now: float) -> bool:
    """Return whether every choice of a job would delay the reservation, where that is known without its choices."""
    return len(room.free) == 1 and job.min_slots > promise.extra and not _ends_by(job, promise.start, now)


def _ends_by(job: PolicyJob, end: float, now: float) -> bool:
    remaining = job.remaining(now)
    return remaining is not None and now + remaining <= end


def _promise(job: PolicyJob, grants: Sequence[Grant], room: Room, now: float) -> Promise | None:
    """Return the reservation of a job; None if it can never start."""
    promises = []
    ends_of: dict[str, list[tuple[float, int]]] = {type_: [] for type_ in room.free}
    for type_, slots, other in _held(grants, room):
        ends_of[type_].append((_end(other, now), slots))
    for type_, free in room.free.items():
        if not runs_on(job, type_):
            continue
        ends = sorted(ends_of[type_])
        at = now
        for end, slots in [(now, 0), *ends]:
            at, free = max(at, end), free + slots
            if free >= job.slots:
                # An infinite start means that durations are unknown: then everything that runs has ended.
                after = free if at < math.inf else room.free[type_] + sum(slots for _, slots in ends)
                promises.append(Promise(at, type_, after - job.slots))
                break
    return min(promises, key=lambda promise: promise.start, default=None)


def _held(grants: Sequence[Grant], room: Room) -> Iterator[tuple[str, int, PolicyJob]]:
    """Yield the type and number of slots of each job that has some."""
    for job in room.kept:
        if job.allocation is not None:
            yield job.allocation.type, job.allocation.slots, job
    for job, type_, slots in grants:
        yield type_, slots, job


def _end(job: PolicyJob, now: float) -> float:
    remaining = job.remaining(now)
    return math.inf if remaining is None else now + remaining
