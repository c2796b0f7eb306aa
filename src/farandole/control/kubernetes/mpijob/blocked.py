"""The condition Blocked: why a job does not get what it wants."""

from __future__ import annotations

from dataclasses import replace

from farandole.control.kubernetes import conditions
from farandole.control.kubernetes.model import Note
from farandole.control.kubernetes.mpijob.job_status import JobStatus


def with_blocked(status: JobStatus, why: tuple[str, str] | None, now: float) -> JobStatus:
    """Return a status that says why a job is blocked (a reason and a sentence), or that nothing blocks it."""
    before = conditions.find(status.conditions, conditions.BLOCKED) or {}
    status = replace(status, conditions=tuple(conditions.blocked(status.conditions, why, now)))
    if why is None or (before.get("status"), before.get("reason")) == ("True", why[0]):
        return status
    return status.noted(Note(*why, warning=True))
