"""As asked: all jobs are rigid, and get the slots that their users requested or none."""

from __future__ import annotations

from farandole.control.scheduler.job import PolicyJob


def size(job: PolicyJob, free: int) -> int:
    """Return the requested number of slots if they are free, or 0."""
    return job.slots if job.slots <= free else 0
