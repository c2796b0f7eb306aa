"""Greedy: each job that fits gets its slots, even if jobs before it wait. Large jobs may starve."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.room import Admitted, Room


def admit(ranked: Sequence[PolicyJob], room: Room, now: float) -> Admitted:
    """Grant slots in order, skipping jobs that do not fit."""
    grants = []
    most = room.most_free
    for job in ranked:
        if job.min_slots <= most and (choice := next(room.choices(job), None)) is not None:
            grants.append(room.grant(job, *choice))
            most = room.most_free
    return Admitted(grants, {}, room.why_not)
