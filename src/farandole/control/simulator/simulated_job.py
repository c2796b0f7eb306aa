"""One simulated job: the truth about it, and the view that a policy gets."""

from __future__ import annotations

import math
from dataclasses import replace

from farandole.control.scheduler.cluster import Allocation
from farandole.control.scheduler.errors import SchedulerError
from farandole.control.scheduler.job import PolicyJob
from farandole.control.simulator.job_work import Work


class SimulatedJob:
    """A job with its work, which is done lazily by `advance`.

    Args:
        view: initial view of the job for policies.
        work: the true work of the job.
        restart_cost: seconds without progress after a start and after each change of type or shape.
    """

    def __init__(self, view: PolicyJob, work: Work, restart_cost: float) -> None:
        self.view = view
        self.work = work
        self.completed: float | None = None
        self.slot_seconds = 0.0
        """Slot-seconds that the job held, including the time until the decision that withdrew its slots."""
        self.failure = ""
        """Why the job cannot continue, because its speed with its slots is not known; "": it can continue."""
        self._restart_cost = restart_cost
        self._restart_left = 0.0
        self._reached = view.submitted
        self._accounted = view.submitted
        self._finish: float | None = None

    @property
    def finish(self) -> float | None:
        """Time of its end with its present slots; None: it waits, or may change its batch size before."""
        allocation = self.view.allocation
        if self._finish is None and allocation is not None and self.completed is None and not self.failure:
            try:
                left = self.work.left(allocation)
            except SchedulerError as error:
                self.failure, left = error.message, None
            if left is not None:
                self._finish = self._reached + self._restart_left + left
        return self._finish

    def advance(self, now: float) -> bool:
        """Do the work up to `now`, update the view with the job's report, and return whether it made progress."""
        allocation = self.view.allocation
        if allocation is None or self.completed is not None or self.failure:
            self._reached = now
            return False
        seconds = now - self._reached
        delay = min(seconds, self._restart_left)
        self._restart_left -= delay
        if seconds > delay:
            self.view = _with_largest(self.view, allocation.slots)
        if self._finish is not None and self._finish <= now:
            # The predicted end is exact; a sum of many time intervals would have rounding errors.
            self.work.run(math.inf, allocation)
            self.completed = self._finish
        elif seconds > delay:
            try:
                used = self.work.run(seconds - delay, allocation)
            except SchedulerError as error:
                self.failure, used = error.message, 0.0
            if self.work.done:
                self.completed = self._reached + delay + used
        self._reached = now
        if self.view.report is not self.work.report:
            self.view = replace(self.view, report=self.work.report)
        return seconds > delay

    def give(self, allocation: Allocation | None, now: float) -> None:
        """Change the job's slots. It must have been advanced to `now`."""
        old = self.view.allocation
        if allocation == old:
            return
        moved = old is not None and allocation is not None and _alike(old, allocation)
        if not moved:
            self._restart_left = 0.0 if allocation is None else self._restart_cost
            if allocation is not None:
                self.work.placed(allocation)
        self._account(now)
        slots = 0 if allocation is None else allocation.slots
        self.view = replace(
            self.view,
            allocation=allocation,
            account=self.view.account if moved else self.view.account.changed(slots, now),
            restarting_until=self.view.restarting_until if moved else now + self._restart_left,
            report=self.work.report,
        )
        if not moved:
            self._finish = None

    def release(self, now: float) -> None:
        """Release the slots of a completed job."""
        self._account(now)

    def _account(self, now: float) -> None:
        if self.view.allocation is not None:
            self.slot_seconds += self.view.allocation.slots * (now - max(self.view.account.since, self._accounted))
        self._accounted = now


def _with_largest(view: PolicyJob, workers: int) -> PolicyJob:
    return view if workers <= view.largest_run else replace(view, largest_run=workers)


def _alike(one: Allocation, other: Allocation) -> bool:
    """Return whether a change of allocation needs no restart: the simulation moves jobs between nodes at no cost."""
    return one.type == other.type and one.shape == other.shape
