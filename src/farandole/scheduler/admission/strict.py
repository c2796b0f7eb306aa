"""Strict: the first job that does not fit holds up all behind it, unless it waits for something else than slots."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.scheduler.job import JobView
from farandole.scheduler.room import Grant, Room


def admit(ranked: Sequence[JobView], room: Room, now: float) -> tuple[list[Grant], dict[str, str]]:
    """Grant slots in order, up to the first job that they do not suffice for."""
    grants: list[Grant] = []
    reasons: dict[str, str] = {}
    for index, job in enumerate(ranked):
        choice = next(room.choices(job), None)
        if choice is not None:
            grants.append(room.grant(job, *choice))
            continue
        reasons[job.name] = room.why_not(job)
        if room.waits_for_room(job):
            behind = f"waits behind {job.name}: {room.total_free} of {room.total} slots are free"
            reasons |= dict.fromkeys((other.name for other in ranked[index + 1 :]), behind)
            break
    return grants, reasons
