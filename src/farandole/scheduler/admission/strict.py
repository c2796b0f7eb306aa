"""Strict: the first job that does not fit holds up all behind it."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.scheduler.job import JobView
from farandole.scheduler.room import Grant, Room


def admit(ranked: Sequence[JobView], room: Room, now: float) -> tuple[list[Grant], dict[str, str]]:
    """Grant slots in order, up to the first job that they do not suffice for."""
    grants: list[Grant] = []
    for index, job in enumerate(ranked):
        choice = next(room.choices(job), None)
        if choice is None:
            behind = f"waits behind {job.name}: {room.total_free} of {room.total} slots are free"
            reasons = dict.fromkeys((other.name for other in ranked[index + 1 :]), behind)
            return grants, {job.name: room.why_not(job), **reasons}
        grants.append(room.grant(job, *choice))
    return grants, {}
