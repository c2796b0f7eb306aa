"""From a workload and options to jobs that can be simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from farandole.scheduler.cluster import Allocation, Cluster
from farandole.scheduler.errors import SchedulerError
from farandole.scheduler.job import JobView
from farandole.scheduler.policy import Policy
from farandole.scheduler.room import tightest_limit
from farandole.scheduler.rules import Rules
from farandole.simulator.agents import AdaptiveAgent, ReportingAgent
from farandole.simulator.application import Application
from farandole.simulator.job_trace import TraceJob, Workload
from farandole.simulator.job_work import Agent, FixedWork, Training, Work
from farandole.simulator.predictors import Given, History, Truth
from farandole.simulator.simulated_job import SimulatedJob
from farandole.simulator.simulation import Outcome, Predictor, Simulation

NO_RULES = Rules()

PREDICTIONS = ("given", "history", "profiles", "truth")
"""What policies may know: what users gave; also what finished jobs of the same application needed; also how long their
steps took; or the true durations."""


@dataclass(frozen=True)
class Options:
    """How a workload is simulated.

    Attributes:
        interval: seconds of a round; 0: decisions follow events at once.
        restart: seconds without progress after each change; None: as the profiles say (0 for jobs without one).
        predictions: one of `PREDICTIONS`.
        adapt_batches: whether jobs of the category `adaptive` choose their batch sizes, under policies that resize
            jobs; under others, all keep the sizes that their users chose.
        resize: whether such policies may resize jobs.
        whole_seconds: see `Training`.
    """

    interval: float = 60.0
    restart: float | None = None
    predictions: str = "history"
    adapt_batches: bool = True
    resize: bool = True
    whole_seconds: bool = True


def simulate(
    cluster: Cluster,
    workload: Workload,
    applications: Mapping[str, Application],
    policy: Policy,
    options: Options,
    progress: Callable[[int, int], None] | None = None,
    rules: Rules = NO_RULES,
) -> Outcome:
    """Simulate a workload under a policy; `rules` are what the policy was told.

    Raises:
        SchedulerError: a job can never run on this cluster, or in its queue.
    """
    if not policy.resizes:
        options = replace(options, adapt_batches=False, resize=False)
    jobs = [_simulated(job, applications.get(job.application), cluster, options) for job in workload.jobs]
    for job in jobs:
        _check_limit(job.view, rules)
    predictor = _predictor(workload, applications, cluster, options)
    return Simulation(cluster, jobs, policy, options.interval, predictor, progress).run()


def _check_limit(job: JobView, rules: Rules) -> None:
    limited = tightest_limit(job.queue, rules)
    if limited is not None and limited.limit is not None and job.min_slots > limited.limit:
        raise SchedulerError(
            f"job {job.name} wants {job.min_slots} slots, and queue {limited.name} may have {limited.limit} at once",
            "give the queue a higher limit with --queue",
        )


def _predictor(
    workload: Workload, applications: Mapping[str, Application], cluster: Cluster, options: Options
) -> Predictor:
    if options.predictions in ("history", "profiles"):
        return History(profiles=options.predictions == "profiles")
    if options.predictions == "given":
        return Given()
    durations, totals = {}, {}
    for job in workload.jobs:
        application = applications.get(job.application)
        durations[job.name] = alone(job, application, cluster)
        if application is not None:
            totals[job.name] = application.convergence.thresholds[-1]
    return Truth(durations, totals)


def _simulated(job: TraceJob, application: Application | None, cluster: Cluster, options: Options) -> SimulatedJob:
    most = max(_usable(application, cluster).values(), default=0)
    resizes = options.resize and job.category != "rigid" and application is not None
    if job.slots > most and not resizes:
        raise SchedulerError(
            f"job {job.name} wants {job.slots} slots of one type, and no type that it can use has more than {most}",
            "simulate a larger cluster with --cluster",
        )
    restart = options.restart
    if restart is None:
        restart = application.constants.restart if application is not None else 0.0
    adapts = options.adapt_batches and job.category == "adaptive"
    limits = _slots_limits(job, application, most, adapts) if resizes else (job.slots, job.slots)
    work = _work(job, application, adapts, options.whole_seconds)
    view = JobView(
        name=job.name,
        submitted=job.submitted,
        slots=min(job.slots, limits[1]),
        min_slots=limits[0],
        max_slots=limits[1],
        application=job.application,
        priority=job.priority,
        queue=job.queue,
        user=job.user,
        deadline=job.deadline,
        duration=job.requested_time,
        since=job.submitted,
        restart_cost=restart,
        batch=None if adapts else job.batch,
        report=work.report,
    )
    return SimulatedJob(view, work, restart)


def _slots_limits(job: TraceJob, application: Application | None, most: int, adapts: bool) -> tuple[int, int]:
    """Return the least and the most slots with which a job of this batch size, or of any it may choose, can run."""
    assert application is not None
    limits = application.limits
    smallest = min(low for low, _ in limits.local.values())
    batch = limits.largest if adapts else job.batch
    return 1, max(1, min(most, int(batch / smallest)))


def _work(job: TraceJob, application: Application | None, adapts: bool, whole_seconds: bool) -> Work:
    if application is None:
        assert job.run_time is not None
        return FixedWork(job.run_time, job.slots)
    return Training(application, make_agent(job, application, adapts), whole_seconds)


def make_agent(job: TraceJob, application: Application, adapts: bool) -> Agent:
    """Return the part of the job that chooses its batch size."""
    return (AdaptiveAgent if adapts else ReportingAgent)(application, job.batch)


def _usable(application: Application | None, cluster: Cluster) -> dict[str, int]:
    """Return how many slots there are of each type that an application can use."""
    return {
        type_: slots for type_, slots in cluster.slots_of.items() if application is None or type_ in application.steps
    }


def alone(job: TraceJob, application: Application | None, cluster: Cluster) -> float:
    """Return how long a job takes with the slots asked for, packed, without waiting or restarts.

    On a cluster of several types it is the harmonic mean over all slots: the time at the average speed.
    """
    if application is None:
        assert job.run_time is not None
        return job.run_time
    speeds = []
    for type_, all_ in _usable(application, cluster).items():
        allocation = packed(cluster, type_, min(job.slots, all_))
        speeds.append((all_, 1 / _seconds(job, application, allocation)))
    return sum(all_ for all_, _ in speeds) / sum(all_ * speed for all_, speed in speeds)


def _seconds(job: TraceJob, application: Application, allocation: Allocation) -> float:
    training = Training(application, ReportingAgent(application, job.batch))
    training.placed(allocation)
    left = training.left(allocation)
    assert left is not None
    return left


def packed(cluster: Cluster, type_: str, slots: int) -> Allocation:
    """Return an allocation on the first nodes of a type, which has so many slots."""
    parts: list[tuple[int, int]] = []
    for index in cluster.indices_of[type_]:
        count = min(slots - sum(count for _, count in parts), cluster.nodes[index].slots)
        if count > 0:
            parts.append((index, count))
    return Allocation(type_, tuple(parts))
