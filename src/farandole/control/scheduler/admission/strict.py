"""Strict: the first job that does not fit blocks all jobs behind it, unless it waits for something other than slots."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.room import Admitted, Grant, Room


def admit(ranked: Sequence[PolicyJob], room: Room, now: float) -> Admitted:
    """Grant slots in order, up to the first job that does not fit."""
    grants: list[Grant] = []
    reasons: dict[str, str] = {}
    behind = ""
    for job in ranked:
        choice = next(room.choices(job), None)
        if choice is not None:
            grants.append(room.grant(job, *choice))
            continue
        reasons[job.name] = room.why_not(job)
        if room.waits_for_room(job):
            behind = f"waits behind {job.name}: {room.total_free} of {room.total} slots are free"
            break
    return Admitted(grants, reasons, lambda job: behind)
