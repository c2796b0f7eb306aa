"""One job while it is simulated: the truth about it, and what a policy may see of it."""

from __future__ import annotations

import math
from dataclasses import replace

from farandole.control.scheduler.cluster import Allocation
from farandole.control.scheduler.errors import SchedulerError
from farandole.control.scheduler.job import PolicyJob
from farandole.control.simulator.job_work import Work


class SimulatedJob:
    """A job with its work. The work is done lazily: `advance` catches up.

    Args:
        view: what a policy sees at first.
        work: the truth.
        restart_cost: seconds without progress after a start and after each change of type or shape.
    """

    def __init__(self, view: PolicyJob, work: Work, restart_cost: float) -> None:
        self.view = view
        self.work = work
        self.completed: float | None = None
        self.slot_seconds = 0.0
        """What the job held, until the decision that took it away."""
        self.failure = ""
        """Why the job cannot go on: nothing is known of its speed with the slots that it was given."""
        self._restart_cost = restart_cost
        self._restart_left = 0.0
        self._reached = view.submitted
        self._accounted = view.submitted
        self._finish: float | None = None

    @property
    def finish(self) -> float | None:
        """When it will be done with what it has; None if it waits, or may change its batch size before."""
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
        """Do the work up to `now`, and let the view show what the job has reported; return whether it got on."""
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
            # What was predicted is what happens: time that is cut into pieces and added up again differs a little.
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
        """Change what the job has; it has been advanced to `now`."""
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
        """Take the slots of a completed job back."""
        self._account(now)

    def _account(self, now: float) -> None:
        if self.view.allocation is not None:
            self.slot_seconds += self.view.allocation.slots * (now - max(self.view.account.since, self._accounted))
        self._accounted = now


def _with_largest(view: PolicyJob, workers: int) -> PolicyJob:
    return view if workers <= view.largest_run else replace(view, largest_run=workers)


def _alike(one: Allocation, other: Allocation) -> bool:
    """Return whether going from one to the other costs no restart: the simulated world moves jobs free of charge."""
    return one.type == other.type and one.shape == other.shape
