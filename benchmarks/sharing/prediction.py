"""The simulator's prediction for the jobs of `python -m benchmarks queue`: their work, and a real cluster's costs.

The simulator is told what each job has to do and when it was submitted, and what was measured before: what a start
costs, how long it takes until a job that is to give slots back has done so, and until workers that come or leave make
a difference. It is told nothing of what happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from farandole.control.scheduler.account import Account
from farandole.control.scheduler.cluster import Allocation, Cluster, parse_cluster
from farandole.control.scheduler.job import Decision, PolicyJob
from farandole.control.scheduler.policies import make_policy
from farandole.control.scheduler.policy import Policy
from farandole.control.scheduler.rules import Rules
from farandole.control.simulator.simulated_job import SimulatedJob
from farandole.control.simulator.simulation import Simulation

HOSTS, SLOTS = 3, 2
STEP_SECONDS = 0.5
"""Seconds of a step of one worker; with several workers, the time is divided by their number."""


@dataclass(frozen=True)
class Job:
    """One job: what it does, its workers, its steps, and when it is submitted."""

    name: str
    kind: str
    workers: str
    steps: int
    after: float
    priority: int = 0
    queue: str = "default"

    @property
    def elastic(self) -> bool:
        return ":" in self.workers

    @property
    def limits(self) -> tuple[int, int]:
        least, _, most = self.workers.partition(":")
        return int(least), int(most or least)

    @property
    def work(self) -> float:
        """Slot-seconds."""
        return self.steps * STEP_SECONDS

    @property
    def duration(self) -> float:
        """The seconds of the job with the workers that it asks for."""
        return self.work / self.limits[1]


@dataclass(frozen=True)
class Costs:
    """The measured costs, in seconds."""

    start: float
    """A job of fixed size: from its slots to its first step, and from its last step to free slots."""
    elastic_start: float
    """The same of an elastic job."""
    hand_over: float
    """From the decision that a job of fixed size is suspended to the moment at which its slots are free."""
    elastic_hand_over: float
    """The same of an elastic job."""
    shrink: float
    """From the decision that an elastic job has fewer slots to the moment at which the others are free."""
    leave: float
    """From that decision to the last step of the workers that leave."""
    join: float
    """From the decision that an elastic job has more slots, which are free, to the first step of its newcomers."""


class Training:
    """The work of a job whose workers come and leave some time after it was decided.

    Args:
        slot_seconds: the work, in seconds of one slot.
        costs: the measured costs.
    """

    report = None

    def __init__(self, slot_seconds: float, costs: Costs) -> None:
        self._work = slot_seconds
        self._costs = costs
        self._lag = 0.0
        self._workers = 0
        """The number of workers until the lag is over; from then on there are as many as slots."""
        self.wait = 0.0
        """Seconds until the slots that it gets next are free, which `Watched` sets."""
        self.most = 0
        """The most workers that it has run with."""

    @property
    def done(self) -> bool:
        return self._work <= 1e-9

    def placed(self, allocation: Allocation) -> None:
        if not self._workers:
            self._lag, self._workers = 0.0, allocation.slots
        elif self._workers != allocation.slots:
            grows = self._workers < allocation.slots
            self._lag = self._costs.join + self.wait if grows else self._costs.leave

    def suspended(self) -> None:
        """Reset the number of its workers to none."""
        self._lag, self._workers = 0.0, 0

    def left(self, allocation: Allocation) -> float:
        if self._work <= self._lag * self._workers:
            return self._work / self._workers
        return self._lag + (self._work - self._lag * self._workers) / allocation.slots

    def run(self, seconds: float, allocation: Allocation) -> float:
        used = min(seconds, self.left(allocation))
        slow = min(used, self._lag)
        self._work -= slow * self._workers + (used - slow) * allocation.slots
        self._lag -= slow
        if self._lag <= 1e-9:
            self._lag, self._workers = 0.0, allocation.slots
        self.most = max(self.most, self._workers)
        return used


class QueuedJob(SimulatedJob):
    """A job that pays for its start, and for a change of its size by the time that workers take to come and leave."""

    def __init__(self, view: PolicyJob, work: Training, start: float) -> None:
        super().__init__(view, work, 0.0)
        self.training = work
        self._start = start

    def give(self, allocation: Allocation | None, now: float) -> None:
        begins = self.view.allocation is None
        self._restart_cost = self._start + self.training.wait if begins else 0.0
        if allocation is None:
            self.training.suspended()
        super().give(allocation, now)
        # The queue does not see a start either, and reports the cost that it was given.
        self.view = replace(self.view, restarting_until=self.view.account.since + self.view.restart_cost)

    def advance(self, now: float) -> None:
        super().advance(now)
        # The queue gets this from the job's launcher, which counts workers that have joined.
        self.view = replace(self.view, largest_run=self.training.most)


class Watched:
    """A policy whose decisions are recorded, with the jobs that get slots from others, and how long that takes.

    Attributes:
        jobs: the simulated jobs, by name.
        story: the time, the job and its slots by node, for each change of a job's slots.
    """

    def __init__(self, policy: Policy, costs: Costs) -> None:
        self._policy = policy
        self._costs = costs
        self.jobs: dict[str, QueuedJob] = {}
        self.story: list[tuple[float, str, str]] = []
        self.resizes = policy.resizes

    def decide(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        decision = self._policy.decide(cluster, jobs, now)
        free = [node.slots for node in cluster.nodes]
        taken = [0.0] * len(free)
        for job in jobs:
            after = decision.allocations.get(job.name)
            kept = dict(after.parts) if after is not None else {}
            for node, count in job.allocation.parts if job.allocation is not None else ():
                free[node] -= count
                if kept.get(node, 0) < count:
                    taken[node] = max(taken[node], self._give_back(job, after is not None))
        for job in jobs:
            after = decision.allocations.get(job.name)
            if after != job.allocation:
                parts = after.parts if after is not None else ()
                self.story.append((now, job.name, ",".join(f"h{node + 1}:{count}" for node, count in parts)))
            if after is not None:
                had = dict(job.allocation.parts) if job.allocation is not None else {}
                self.jobs[job.name].training.wait = max(
                    taken[node] if count - had.get(node, 0) > free[node] else 0.0 for node, count in after.parts
                )
        return decision

    def _give_back(self, job: PolicyJob, goes_on: bool) -> float:
        costs = self._costs
        if job.elastic:
            return costs.shrink if goes_on else costs.elastic_hand_over
        return costs.hand_over


class Prediction(NamedTuple):
    """The simulator's prediction."""

    ends: dict[str, float]
    """The end of each job, in seconds since the first one was submitted."""
    story: list[tuple[float, str, str]]
    """The changes of the jobs' slots, as `Watched.story` records them."""


def predicted(
    policy: str, rules: Rules, these: Sequence[Job], submitted: Mapping[str, float], costs: Costs
) -> Prediction:
    """Return the prediction for jobs that were submitted at these times, in seconds since the first one."""
    watched = Watched(make_policy(policy, rules), costs)
    for job in these:
        least, most = job.limits
        view = PolicyJob(
            name=job.name,
            submitted=submitted[job.name],
            slots=most,
            min_slots=least,
            max_slots=most,
            priority=job.priority,
            queue=job.queue,
            user="root",
            duration=job.duration,  # As the user has told the queue, so that a policy sees the same in both.
            account=Account(since=submitted[job.name]),
            restart_cost=round(costs.elastic_start, 2),
        )
        start = costs.elastic_start if job.elastic else costs.start
        watched.jobs[job.name] = QueuedJob(view, Training(job.work, costs), start)
    outcome = Simulation(parse_cluster(f"{HOSTS}x{SLOTS}"), list(watched.jobs.values()), watched).run()
    ends = {job.view.name: job.completed for job in outcome.jobs if job.completed is not None}
    return Prediction(ends, watched.story)
