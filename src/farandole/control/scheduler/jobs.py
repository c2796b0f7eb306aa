"""The jobs that a policy decides about, and the slots that they leave free.

A decision covers all jobs, but few of them change from one decision to the next. A caller that needs many decisions,
such as the simulator, keeps one `Jobs` and updates it; a caller that needs one decision passes a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import overload

from farandole.control.scheduler.cluster import Allocation, Cluster, FreeSlots
from farandole.control.scheduler.job import PolicyJob

by_submission = attrgetter("submitted", "name")
"""The key that sorts jobs in the order of their submission."""


class Jobs(Sequence[PolicyJob]):
    """Jobs that are not complete: first the jobs with slots, then the waiting ones.

    Attributes:
        running: jobs that have slots, by name, in any order.
        allocations: slots of running jobs, by name.
        free: slots that no job has.
        unseated: names of running jobs whose slots do not exist in the cluster, or also belong to another job.
    """

    def __init__(self, cluster: Cluster, jobs: Iterable[PolicyJob] = ()) -> None:
        self.running: dict[str, PolicyJob] = {}
        self.allocations: dict[str, Allocation] = {}
        self.free = FreeSlots(cluster)
        self.unseated: set[str] = set()
        self._waiting: dict[str, PolicyJob] = {}
        self._in_order = True
        self.update(sorted(jobs, key=by_submission))

    @classmethod
    def of(cls, cluster: Cluster, jobs: Sequence[PolicyJob]) -> Jobs:
        """Return jobs as a `Jobs` object; if they are one already, return it unchanged."""
        return jobs if isinstance(jobs, Jobs) else cls(cluster, jobs)

    @property
    def waiting(self) -> Mapping[str, PolicyJob]:
        """The jobs that have no slots, by name, in the order of their submission."""
        if not self._in_order:
            jobs = sorted(self._waiting.values(), key=by_submission)
            self._waiting = {job.name: job for job in jobs}
            self._in_order = True
        return self._waiting

    def update(self, jobs: Iterable[PolicyJob]) -> None:
        """Add jobs, replacing jobs of the same names. Slots may move from one of them to another."""
        moved = []
        for job in jobs:
            if self.allocations.get(job.name) is not job.allocation:
                self._vacate(job.name)
                moved.append(job)
            if job.allocation is not None:
                self._waiting.pop(job.name, None)
                self.running[job.name] = job
            else:
                self.running.pop(job.name, None)
                last = next(reversed(self._waiting.values()), job)
                self._in_order &= job.name in self._waiting or by_submission(last) <= by_submission(job)
                self._waiting[job.name] = job
        for job in moved:
            if job.allocation is not None:
                self._seat(job.name, job.allocation)

    def remove(self, name: str) -> None:
        """Remove a job that is complete."""
        self._vacate(name)
        self.running.pop(name, None)
        self._waiting.pop(name, None)

    def _seat(self, name: str, allocation: Allocation) -> None:
        self.allocations[name] = allocation
        if self.free.fits(allocation):
            self.free.take(allocation)
        else:
            self.unseated.add(name)

    def _vacate(self, name: str) -> None:
        allocation = self.allocations.pop(name, None)
        if name in self.unseated:
            self.unseated.remove(name)
        elif allocation is not None:
            self.free.give([allocation])

    def __iter__(self) -> Iterator[PolicyJob]:
        yield from self.running.values()
        yield from self.waiting.values()

    def __len__(self) -> int:
        return len(self.running) + len(self._waiting)

    @overload
    def __getitem__(self, at: int) -> PolicyJob: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[PolicyJob]: ...
    def __getitem__(self, at: int | slice) -> PolicyJob | Sequence[PolicyJob]:
        return list(self)[at]
