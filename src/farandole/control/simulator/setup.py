"""Sets up a simulation: creates simulated jobs from a workload and options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from farandole.base.display.wording import count
from farandole.control.scheduler.account import Account
from farandole.control.scheduler.cluster import Allocation, Cluster
from farandole.control.scheduler.errors import SchedulerError
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.policy import Policy
from farandole.control.scheduler.room import tightest_limit
from farandole.control.scheduler.rules import Rules
from farandole.control.simulator.agents import AdaptiveAgent, ReportingAgent
from farandole.control.simulator.application import Application
from farandole.control.simulator.job_trace import TraceJob, Workload
from farandole.control.simulator.job_work import FixedWork, Training, Work
from farandole.control.simulator.predictors import Given, History, Truth
from farandole.control.simulator.simulated_job import SimulatedJob
from farandole.control.simulator.simulation import Predictor, Simulation, SimulationOutcome

NO_RULES = Rules()


@dataclass(frozen=True)
class Options:
    """The options of a simulation.

    Attributes:
        interval: length of a round in seconds; 0: decisions follow events immediately.
        restart: seconds without progress after each change; None: the profile's value (0 for jobs without a profile).
        predictions: one of `predictors.PREDICTIONS`.
        adapt_batches: whether jobs of the category `adaptive` choose their batch sizes, under policies that resize
            jobs; under others, all keep the sizes that their users chose.
        resize: whether such policies may resize jobs.
        whole_seconds: as in `Training`.
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
) -> SimulationOutcome:
    """Simulate a workload under a policy, which was created with `rules`.

    A job that can never run on this cluster or in its queue is left out; the outcome names it.
    """
    if not policy.resizes:
        options = replace(options, adapt_batches=False, resize=False)
    jobs: list[SimulatedJob] = []
    never: dict[str, str] = {}
    for job in workload.jobs:
        try:
            jobs.append(_simulated(job, applications.get(job.application), cluster, options))
            _check_limit(jobs[-1].view, rules)
        except SchedulerError as why:
            never[job.name] = f"can never run: {why.message}"
    jobs = [job for job in jobs if job.view.name not in never]
    workload = replace(workload, jobs=tuple(job for job in workload.jobs if job.name not in never))
    predictor = _predictor(workload, applications, cluster, options)
    outcome = Simulation(cluster, jobs, policy, options.interval, predictor, progress).run()
    outcome.unfinished = {**never, **outcome.unfinished}
    return outcome


def _check_limit(job: PolicyJob, rules: Rules) -> None:
    limited = tightest_limit(job.queue, rules)
    if limited is not None and limited.limit is not None and job.min_slots > limited.limit:
        raise SchedulerError(
            f"it needs {count(job.min_slots, 'slot')}, and queue {limited.name} may have {limited.limit} at once"
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
    resizes = options.resize and job.category != "rigid" and application is not None
    adapts = options.adapt_batches and job.category == "adaptive"
    types = _types_for(job, application, cluster, 1 if resizes else job.slots, adapts)
    restart = options.restart
    if restart is None:
        restart = application.constants.restart if application is not None else 0.0
    limits = _slots_limits(job, application, cluster, types, adapts) if resizes else (job.slots, job.slots)
    work = _work(job, application, types, adapts, options.whole_seconds)
    view = PolicyJob(
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
        account=Account(since=job.submitted),
        restart_cost=restart,
        batch=None if adapts else job.batch,
        report=work.report,
    )
    return SimulatedJob(view, work, restart)


def _types_for(
    job: TraceJob, application: Application | None, cluster: Cluster, slots: int, adapts: bool
) -> tuple[str, ...]:
    """Return the types of nodes on which a job can run with `slots` slots.

    Raises:
        SchedulerError: it can run on no type.
    """
    all_ = _usable(application, cluster)
    most = max(all_.values(), default=0)
    if slots > most:
        raise SchedulerError(f"it needs {slots} slots of one type, and no type that it can use has more than {most}")
    if application is None:
        return tuple(type_ for type_ in all_ if slots <= all_[type_])
    types, why = [], ""
    for type_ in all_:
        if slots <= all_[type_]:
            unfit = _misfit(job, application, packed(cluster, type_, slots), adapts)
            types += [] if unfit else [type_]
            why = why or unfit
    if not types:
        raise SchedulerError(why)
    return tuple(types)


def _misfit(job: TraceJob, application: Application, allocation: Allocation, adapts: bool) -> str:
    """Return why the batch of a job cannot be split over an allocation; "" if it can."""
    slots, limits = allocation.slots, application.limits
    if adapts:
        least = math.ceil(limits.local[allocation.type][0] * slots)
        too_many = f"{slots} workers take at least {least} samples in a step, and the largest batch is {limits.largest}"
        return too_many if least > limits.largest else ""
    times = application.steps[allocation.type]
    plan = ReportingAgent(application, job.batch).plan(allocation, times.limit(allocation.shape), math.inf)
    try:
        times.at(allocation.shape, plan.local)
    except SchedulerError as error:
        return f"{job.batch} samples in a step of {slots} workers: {error.message}"
    return ""


def _slots_limits(
    job: TraceJob, application: Application | None, cluster: Cluster, types: Sequence[str], adapts: bool
) -> tuple[int, int]:
    """Return the smallest and largest number of slots of a job; `adapts`: with any batch size, not only its own."""
    assert application is not None
    limits = application.limits
    smallest = max(limits.local[type_][0] for type_ in types)
    batch = limits.largest if adapts else job.batch
    return 1, max(1, min(max(cluster.slots_of[type_] for type_ in types), int(batch / smallest)))


def _work(
    job: TraceJob, application: Application | None, types: Sequence[str], adapts: bool, whole_seconds: bool
) -> Work:
    if application is None:
        assert job.run_time is not None
        return FixedWork(job.run_time, job.slots)
    agent = (AdaptiveAgent if adapts else ReportingAgent)(application, job.batch)
    limits = agent.report.limits
    local = {type_: limits.local[type_] for type_ in types}
    agent.report = replace(agent.report, limits=replace(limits, local=local))
    return Training(application, agent, whole_seconds)


def _usable(application: Application | None, cluster: Cluster) -> dict[str, int]:
    """Return the number of slots of each type that an application can use."""
    return {
        type_: slots for type_, slots in cluster.slots_of.items() if application is None or type_ in application.steps
    }


def alone(job: TraceJob, application: Application | None, cluster: Cluster) -> float:
    """Return the run time of a job in seconds with the requested slots, packed, without waiting or restarts.

    On a cluster with several types, it is the harmonic mean over all slots: the time at the average speed. A resizable
    job that requests more slots than its batch can be split over has fewer. 0: it can run on no type.
    """
    if application is None:
        assert job.run_time is not None
        return job.run_time
    speeds = []
    for type_, all_ in _usable(application, cluster).items():
        slots = min(job.slots, all_)
        if job.category != "rigid":
            slots = min(slots, max(1, int(job.batch / application.limits.local[type_][0])))
        allocation = packed(cluster, type_, slots)
        if not _misfit(job, application, allocation, adapts=False):
            speeds.append((all_, 1 / _seconds(job, application, allocation)))
    return sum(all_ for all_, _ in speeds) / sum(all_ * speed for all_, speed in speeds) if speeds else 0.0


def _seconds(job: TraceJob, application: Application, allocation: Allocation) -> float:
    training = Training(application, ReportingAgent(application, job.batch))
    training.placed(allocation)
    left = training.left(allocation)
    assert left is not None
    return left


def packed(cluster: Cluster, type_: str, slots: int) -> Allocation:
    """Return an allocation on the first nodes of a type, which must have enough slots."""
    parts: list[tuple[int, int]] = []
    for index in cluster.indices_of[type_]:
        count = min(slots - sum(count for _, count in parts), cluster.nodes[index].slots)
        if count > 0:
            parts.append((index, count))
    return Allocation(type_, tuple(parts))
