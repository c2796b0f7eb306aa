"""Elastic: each job starts with the least it can run with, and all share what is left equally.

The sharing is in `control.scheduler.composed`: it takes slots back from jobs that have grown when another comes.
"""

from __future__ import annotations

from farandole.control.scheduler.job import JobView


def size(job: JobView, free: int) -> int:
    """Return the least the job can run with, or 0 if fewer are free."""
    return job.min_slots if job.min_slots <= free else 0
