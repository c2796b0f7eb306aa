"""As asked: all jobs are rigid, and get what their users asked for or nothing."""

from __future__ import annotations

from farandole.control.scheduler.job import JobView


def size(job: JobView, free: int) -> int:
    """Return the slots asked for if they are free, or 0."""
    return job.slots if job.slots <= free else 0
