"""The simulation: each decision grants slots to jobs; between decisions, jobs advance and complete.

Time is divided into rounds of `interval` seconds. A decision is made at the end of a round in which something has
happened, or for which the policy has asked. A job is visible from the first decision at or after its submission, and
the slots of a completed job are idle until the next decision. With an interval of 0, a decision follows each event
immediately. Between decisions everything is known in advance, except for trainings that adapt their batch size, for
which every round is a decision.

A simulation ends when all jobs are complete, or when no remaining job can make progress: no job is running or still to
be submitted, or the running jobs only restart. The outcome has the remaining jobs with reasons.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from farandole.control.scheduler.cluster import Allocation, Cluster, FreeSlots
from farandole.control.scheduler.errors import SchedulerError
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.jobs import Jobs
from farandole.control.scheduler.policy import Policy
from farandole.control.simulator.simulated_job import SimulatedJob

MOST_FRUITLESS = 100
"""Maximum number of successive decisions that change allocations or leave all slots free while no job makes progress:
more are treated as an endless loop."""
ADAPTING_ROUND = 60.0
"""Seconds between decisions, with an interval of 0, while a training that adapts its batch size is running."""


class Predictor(Protocol):
    """A predictor of what a policy may know about unfinished jobs, from finished ones."""

    def finished(self, job: PolicyJob, ran: float) -> None:
        """Record that a job has ended, after `ran` seconds of progress."""

    def predict(self, job: PolicyJob) -> PolicyJob:
        """Return a job with its predictions."""


@dataclass
class SimulationOutcome:
    """The outcome of a simulation."""

    jobs: list[SimulatedJob]
    unfinished: dict[str, str] = field(default_factory=dict)
    """Reasons of the jobs that could not be completed, by name."""
    decisions: int = 0
    decided: float = 0.0
    """Time of the last decision."""
    contention: list[tuple[float, int]] = field(default_factory=list)
    """Time of each decision, with the number of jobs that were not complete."""


class Simulation:
    """Simulates jobs on a cluster under a policy.

    Args:
        cluster: all nodes.
        jobs: jobs in the order of their submission.
        policy: the policy that decides.
        interval: length of a round in seconds; 0: decisions follow events immediately.
        predictor: predictor of the needs of jobs; None: nothing is predicted.
        progress: called after each decision with the number of completed jobs and of all jobs.
    """

    def __init__(
        self,
        cluster: Cluster,
        jobs: Sequence[SimulatedJob],
        policy: Policy,
        interval: float = 0.0,
        predictor: Predictor | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._policy = policy
        self._interval = interval
        self._predictor = predictor
        self._progress = progress
        self._coming = sorted(jobs, key=lambda job: (job.view.submitted, job.view.name), reverse=True)
        self._active: dict[str, SimulatedJob] = {}
        self._jobs = Jobs(cluster)
        """The active jobs, as the policy sees them."""
        self._adapting: dict[str, SimulatedJob] = {}
        """Jobs with slots whose end is not known, because they may change their batch sizes before."""
        self._ends: list[tuple[float, str]] = []
        self._noted: dict[str, float] = {}
        self._outcome = SimulationOutcome(list(jobs))
        self._completed = 0
        self._review_at: float | None = None
        self._reasons: Mapping[str, str] = {}
        """Reasons of the last decision."""
        self._now = -math.inf
        self._fruitless = 0
        """Number of decisions since any job last made progress, arrived or left."""

    def run(self) -> SimulationOutcome:
        """Simulate until all jobs are complete, or no remaining job can make progress.

        Raises:
            SchedulerError: the policy breaks a rule.
        """
        while (self._coming or self._active) and not self._is_stuck():
            self._now = self._next()
            self._advance()
            self._admit()
            self._decide()
            if self._progress is not None:
                self._progress(self._completed, len(self._outcome.jobs))
        self._outcome.decided = self._now
        return self._outcome

    def _next(self) -> float:
        """Return the time of the next decision."""
        times = [self._coming[-1].view.submitted] if self._coming else []
        while self._ends and not self._is_current(self._ends[0]):
            heapq.heappop(self._ends)
        if self._ends:
            times.append(self._ends[0][0])
        if self._review_at is not None and self._active:
            times.append(self._review_at)
        if self._adapting:
            times.append(self._now + (self._interval or ADAPTING_ROUND))
        if not self._interval:
            return max(self._now, min(times))
        first = self._interval if self._now == -math.inf else self._now + self._interval
        return max(first, math.ceil(min(times) / self._interval - 1e-9) * self._interval)

    def _is_stuck(self) -> bool:
        """Return whether no remaining job can ever make progress; record the reason for each of them."""
        goes_on = self._jobs.running or self._review_at is not None
        if self._coming or (goes_on and self._fruitless <= MOST_FRUITLESS):
            return False
        for name, job in self._active.items():
            restarts = "restarts again and again without any progress"
            self._outcome.unfinished[name] = (
                restarts if job.view.allocation is not None else self._reasons.get(name, "never starts")
            )
        return True

    def _is_current(self, end: tuple[float, str]) -> bool:
        job = self._active.get(end[1])
        return job is not None and job.finish == end[0]

    def _advance(self) -> None:
        """Advance jobs that are due or whose end is unknown to the present time, and remove completed ones."""
        due = set()
        while self._ends and self._ends[0][0] <= self._now:
            due.add(heapq.heappop(self._ends)[1])
        all_, adapting = self._review_at is not None, self._adapting
        for name in [name for name in self._jobs.running if all_ or name in due or name in adapting]:
            job = self._active[name]
            if job.advance(self._now):
                self._fruitless = 0
            if job.completed is not None:
                self._complete(name, job)
            elif job.failure:
                self._drop(name, job)
            else:
                self._jobs.update([job.view])

    def _leave(self, name: str, job: SimulatedJob) -> None:
        """Remove a job that makes no more progress."""
        job.release(self._now)
        del self._active[name]
        self._adapting.pop(name, None)
        self._jobs.remove(name)
        self._fruitless = 0

    def _complete(self, name: str, job: SimulatedJob) -> None:
        self._leave(name, job)
        self._completed += 1
        view = job.view
        if self._predictor is not None and view.application:
            assert job.completed is not None
            self._predictor.finished(view, view.ran(job.completed) - view.restart_cost * (view.account.restarts + 1))
            for other in self._active.values():
                if other.view.application == view.application:
                    other.view = self._predictor.predict(other.view)
                    self._jobs.update([other.view])

    def _drop(self, name: str, job: SimulatedJob) -> None:
        """Abandon a job whose speed with its slots is not known."""
        self._leave(name, job)
        self._outcome.unfinished[name] = job.failure
        self._review_at = self._now  # Its slots are free.

    def _admit(self) -> None:
        while self._coming and self._coming[-1].view.submitted <= self._now:
            self._fruitless = 0
            job = self._coming.pop()
            if self._predictor is not None:
                job.view = self._predictor.predict(job.view)
            self._active[job.view.name] = job
            self._jobs.update([job.view])

    def _decide(self) -> None:
        if not self._active:
            self._review_at = None
            return
        decision = self._policy.decide(self._cluster, self._jobs, self._now)
        self._review_at, self._reasons = decision.review_at, decision.reasons
        self._outcome.decisions += 1
        self._outcome.contention.append((self._now, len(self._jobs)))
        had, has = self._jobs.allocations, decision.allocations
        changed: dict[str, Allocation | None] = dict.fromkeys(had.keys() - has.keys())
        changed |= {name: one for name, one in has.items() if had.get(name) is not one and had.get(name) != one}
        if changed:
            check(self._jobs, changed)
            for name, allocation in sorted(changed.items()):
                self._give(name, allocation)
            self._jobs.update(self._active[name].view for name in changed if name in self._active)
        self._fruitless += bool(changed) or not self._jobs.running

    def _give(self, name: str, allocation: Allocation | None) -> None:
        job = self._active[name]
        job.advance(self._now)
        job.give(allocation, self._now)
        finish = job.finish
        self._adapting.pop(name, None)
        if job.failure:
            self._drop(name, job)
        elif finish is None and allocation is not None:
            self._adapting[name] = job
        elif finish is not None and self._noted.get(name) != finish:
            self._noted[name] = finish
            heapq.heappush(self._ends, (finish, name))


def check(jobs: Jobs, changed: Mapping[str, Allocation | None]) -> None:
    """Check that a decision gives only existing free slots, and only numbers of slots that the jobs can use.

    Args:
        jobs: the jobs before the decision.
        changed: changed allocations by job name; None: the job loses its slots.

    Raises:
        SchedulerError: the decision breaks these rules.
    """
    free = jobs.free.copy()
    free.give(jobs.allocations[name] for name in changed if name in jobs.allocations)
    for name, allocation in changed.items():
        job = jobs.running.get(name) or jobs.waiting.get(name)
        if job is None:
            raise SchedulerError(f"the policy gives slots to {name}, which is not a job")
        if allocation is None:
            continue
        least, most = job.min_slots, job.max_slots
        if not least <= allocation.slots <= most:
            raise SchedulerError(f"the policy gives {allocation.slots} slots to {name}, which takes {least} to {most}")
        if not _is_there(free, allocation):
            raise SchedulerError(f"the policy gives {name} slots that do not exist or are in use: {allocation}")
        free.take(allocation)


def _is_there(free: FreeSlots, allocation: Allocation) -> bool:
    nodes = free.cluster.nodes
    return (
        len({node for node, _ in allocation.parts}) == len(allocation.parts)
        and all(count >= 1 and nodes[node].type == allocation.type for node, count in allocation.parts)
        and free.fits(allocation)
    )
