"""What the simulator says of the jobs of `python -m benchmarks queue`: their work, and what a real cluster costs.

The simulator is told what each job has to do and when it was submitted, and four figures that were measured before:
what a start costs, and how long it takes until a job that is to give slots back has done so, each of a job of fixed
size and of an elastic one. It is told nothing of what happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farandole.scheduler.cluster import Allocation, Cluster, parse_cluster
from farandole.scheduler.job import Decision, JobView
from farandole.scheduler.policies import make_policy
from farandole.scheduler.policy import Policy
from farandole.scheduler.rules import Rules
from farandole.simulator.simulated_job import SimulatedJob
from farandole.simulator.simulation import Simulation

HOSTS, SLOTS = 3, 2
STEP_SECONDS = 0.5
"""Of one worker; of several, as much less."""


@dataclass(frozen=True)
class Job:
    """One job: what it does, its workers, its steps, and when it is submitted."""

    name: str
    kind: str
    workers: str
    steps: int
    after: float

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
        """With the workers asked for."""
        return self.work / self.limits[1]


@dataclass(frozen=True)
class Costs:
    """Seconds that were measured."""

    start: float
    """Of a job of fixed size: from slots to its first step, and from its last step to slots that are free."""
    elastic_start: float
    """The same of an elastic job; newcomers to one take as long until they help."""
    hand_over: float
    """From the decision that a job of fixed size is suspended to the moment at which its slots are free."""
    elastic_hand_over: float
    """The same of an elastic job, which also gives slots back by shrinking."""


class Training:
    """The work of a job of which newcomers need some time before they help.

    Args:
        slot_seconds: of work.
        join: seconds from the moment at which an elastic job gets more slots to that at which they are used.
    """

    report = None

    def __init__(self, slot_seconds: float, join: float) -> None:
        self._work = slot_seconds
        self._join = join
        self._slots = 0
        self._lag = 0.0
        self._lag_slots = 0

    @property
    def done(self) -> bool:
        return self._work <= 1e-9

    def placed(self, allocation: Allocation) -> None:
        before = self._lag_slots if self._lag > 0 else self._slots
        grows = 0 < before < allocation.slots
        self._slots = allocation.slots
        self._lag, self._lag_slots = (self._join, before) if grows else (0.0, 0)

    def suspended(self) -> None:
        """Forget the workers that it had."""
        self._slots, self._lag, self._lag_slots = 0, 0.0, 0

    def left(self, allocation: Allocation) -> float:
        if self._work <= self._lag * self._lag_slots:
            return self._work / self._lag_slots
        return self._lag + (self._work - self._lag * self._lag_slots) / allocation.slots

    def run(self, seconds: float, allocation: Allocation) -> float:
        used = min(seconds, self.left(allocation))
        slow = min(used, self._lag)
        self._work -= slow * self._lag_slots + (used - slow) * allocation.slots
        self._lag -= slow
        return used


class QueuedJob(SimulatedJob):
    """A job that pays for its start, and not for a change of its size.

    Args:
        hand_over: seconds that its next slots take to be free, by its name; `Watched` says it.
    """

    def __init__(self, view: JobView, work: Training, start: float, hand_over: Mapping[str, float]) -> None:
        super().__init__(view, work, 0.0)
        self._training = work
        self._start = start
        self._hand_over = hand_over

    def give(self, allocation: Allocation | None, now: float) -> None:
        begins = self.view.allocation is None
        self._restart_cost = self._start + self._hand_over.get(self.view.name, 0.0) if begins else 0.0
        if allocation is None:
            self._training.suspended()
        super().give(allocation, now)


class Watched:
    """A policy of which it is noted who gets slots that another job has to give back, and how long that takes."""

    def __init__(self, policy: Policy, costs: Costs) -> None:
        self._policy = policy
        self._costs = costs
        self.hand_over: dict[str, float] = {}
        self.resizes = policy.resizes

    def decide(self, cluster: Cluster, jobs: Sequence[JobView], now: float) -> Decision:
        decision = self._policy.decide(cluster, jobs, now)
        free = [node.slots for node in cluster.nodes]
        taken = [0.0] * len(free)
        for job in jobs:
            after = decision.allocations.get(job.name)
            kept = dict(after.parts) if after is not None else {}
            for node, count in job.allocation.parts if job.allocation is not None else ():
                free[node] -= count
                if kept.get(node, 0) < count:
                    seconds = self._costs.elastic_hand_over if job.elastic else self._costs.hand_over
                    taken[node] = max(taken[node], seconds)
        for job in jobs:
            after = decision.allocations.get(job.name)
            if after is not None and job.allocation is None:
                self.hand_over[job.name] = max(
                    taken[node] if count > free[node] else 0.0 for node, count in after.parts
                )
        return decision


def predicted(
    policy: str, rules: Rules, these: Sequence[Job], submitted: Mapping[str, float], costs: Costs
) -> dict[str, float]:
    """Return when each job ends, in seconds since the first one was submitted."""
    watched = Watched(make_policy(policy, rules), costs)
    simulated = []
    for job in these:
        least, most = job.limits
        view = JobView(
            name=job.name,
            submitted=submitted[job.name],
            slots=most,
            min_slots=least,
            max_slots=most,
            duration=job.duration,  # As its user has said to the queue: a policy sees here what it sees there.
            since=submitted[job.name],
            restart_cost=round(costs.elastic_start, 2),
        )
        start = costs.elastic_start if job.elastic else costs.start
        simulated.append(QueuedJob(view, Training(job.work, start), start, watched.hand_over))
    outcome = Simulation(parse_cluster(f"{HOSTS}x{SLOTS}"), simulated, watched).run()
    return {job.view.name: job.completed for job in outcome.jobs if job.completed is not None}
