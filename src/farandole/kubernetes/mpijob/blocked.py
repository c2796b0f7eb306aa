"""The condition Blocked: why a job does not get what it wants."""

from __future__ import annotations

from farandole.kubernetes import conditions
from farandole.kubernetes.model import Note
from farandole.kubernetes.mpijob.job_status import JobStatus


def with_blocked(status: JobStatus, why: tuple[str, str] | None, now: float) -> JobStatus:
    """Return a status that says why a job is blocked (a reason and a sentence), or that nothing blocks it."""
    if why is None:
        return status.with_condition(conditions.BLOCKED, False, "Unblocked", "Nothing is in the job's way.", now)
    before = conditions.find(status.conditions, conditions.BLOCKED) or {}
    status = status.with_condition(conditions.BLOCKED, True, *why, now)
    if (before.get("status"), before.get("reason")) == ("True", why[0]):
        return status
    return status.noted(Note(*why, warning=True))
