"""Greedy: each job that fits gets its slots, whatever waits before it. Large jobs may starve."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.scheduler.job import JobView
from farandole.scheduler.room import Grant, Room


def admit(ranked: Sequence[JobView], room: Room, now: float) -> tuple[list[Grant], dict[str, str]]:
    """Grant slots in order, leaving out jobs that they do not suffice for."""
    grants, reasons = [], {}
    for job in ranked:
        choice = next(room.choices(job), None)
        if choice is None:
            reasons[job.name] = room.why_not(job)
        else:
            grants.append(room.grant(job, *choice))
    return grants, reasons
