"""Elastic: each job starts with the fewest slots that it can run with, and all share the rest equally.

The sharing is in `control.scheduler.composed`: jobs that have grown lose slots again when another job arrives.
"""

from __future__ import annotations

from farandole.control.scheduler.job import PolicyJob


def size(job: PolicyJob, free: int) -> int:
    """Return the smallest number of slots that the job can run with, or 0 if fewer are free."""
    return job.min_slots if job.min_slots <= free else 0
