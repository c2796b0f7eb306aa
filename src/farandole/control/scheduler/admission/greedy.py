"""Greedy: each job that fits gets its slots, whatever waits before it. Large jobs may starve."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.control.scheduler.job import JobView
from farandole.control.scheduler.room import Admitted, Room


def admit(ranked: Sequence[JobView], room: Room, now: float) -> Admitted:
    """Grant slots in order, leaving out jobs that they do not suffice for."""
    grants = []
    most = room.most_free
    for job in ranked:
        if job.min_slots <= most and (choice := next(room.choices(job), None)) is not None:
            grants.append(room.grant(job, *choice))
            most = room.most_free
    return Admitted(grants, {}, room.why_not)
