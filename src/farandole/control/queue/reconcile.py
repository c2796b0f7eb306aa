"""One turn of the queue: from known jobs and observed facts to changed jobs and actions. Pure.

    jobs, facts -> observed -> hosts that are lost -> the policy's decision -> jobs, actions

The daemon writes the jobs before it carries out any action, and every action may be repeated. So it may be killed
between any two steps: the next turn begins from what was written and from what is observed, and returns again the
actions that remain. Nothing depends on the daemon's memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from farandole.control.queue.model import (
    NOTHING_SEEN,
    Action,
    AttemptFact,
    AttemptState,
    JobEvent,
    Phase,
    QueueHost,
    QueueJob,
    SetBatch,
    StopReason,
)
from farandole.control.queue.numbering import numbered
from farandole.control.queue.settings import QueueSettings
from farandole.control.queue.transitions import (
    actions_of,
    describe_change,
    observed,
    shrunk,
    started,
    stopped,
    with_slots,
)
from farandole.control.queue.views import average_durations, cluster_of, have_same_shape, view_of
from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.handover import Holder, Standing, next_slots
from farandole.control.scheduler.job import Decision, PolicyJob, TrainingReport

Facts = Mapping[str, AttemptFact]
"""The observed attempts, by job name."""


class Decide(Protocol):
    """A policy with its rules."""

    def __call__(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        """Return the allocation of each job, with reasons."""


class Turn(NamedTuple):
    """The result of a turn."""

    jobs: dict[str, QueueJob]
    """All jobs, by name."""
    actions: list[Action]
    events: list[JobEvent]
    reasons: dict[str, str]
    """A sentence for each job that the policy decided on."""
    standing: Standing | None
    """The decision for the next turn; it need not survive the daemon."""


def turn(
    jobs: Mapping[str, QueueJob],
    hosts: Sequence[QueueHost],
    settings: QueueSettings,
    facts: Facts,
    decide: Decide,
    now: float,
    standing: Standing | None = None,
    reports: Mapping[str, TrainingReport] | None = None,
) -> Turn:
    """Return the jobs, actions, events and reasons that follow from the known and the observed state.

    Args:
        jobs: all jobs, by name.
        hosts: the hosts of the queue.
        settings: the settings of the queue.
        facts: the observed attempts of all jobs that have one.
        decide: the policy.
        now: seconds since 1970.
        standing: the decision of the previous turn.
        reports: the measurements of jobs, by name, for policies that size jobs by them.
    """
    before = dict(jobs)
    seen = {name: _observe(job, facts, hosts, now) for name, job in before.items()}
    after = seen
    standing = _decide(after, hosts, settings, decide, now, standing, reports or {})
    reasons: dict[str, str] = {}
    if standing is not None:
        after, waits = _carry_out(after, standing, hosts, facts, now)
        reasons = {**standing.decision.reasons, **waits}
    else:
        why = "all hosts that answer are being drained" if any(host.up for host in hosts) else "no host can be reached"
        reasons = {name: f"waits: {why}" for name, job in after.items() if job.phase is Phase.WAITING}
    after = numbered(after, hosts)
    steps = ((before, seen), (seen, after))  # A job may be lost and get other slots in one turn.
    events = [
        JobEvent(name, said)
        for earlier, later in steps
        for name, job in later.items()
        if (said := describe_change(earlier[name], job))
    ]
    actions = [
        action
        for name, job in after.items()
        if job.phase.has_attempt
        for action in actions_of(job, facts.get(name, NOTHING_SEEN) if job.attempt == before[name].attempt else NEW)
    ]
    if standing is not None:
        actions += _batches(after, standing, facts)
    return Turn(after, actions, events, reasons, standing)


NEW = NOTHING_SEEN
"""The observed state of an attempt that was only just decided on."""


def _observe(job: QueueJob, facts: Facts, hosts: Sequence[QueueHost], now: float) -> QueueJob:
    if not job.phase.has_attempt:
        return job
    down = {host.name for host in hosts if not host.up}
    gone = down | (set(job.slots) - {host.name for host in hosts})
    job = observed(job, facts.get(job.name, NOTHING_SEEN), gone, now)
    return _without_lost_hosts(job, gone, now) if job.has_slots else job


def _without_lost_hosts(job: QueueJob, down: Collection[str], now: float) -> QueueJob:
    lost = sorted(host for host in job.slots if host in down)
    if not lost:
        return job
    left = {host: number for host, number in job.slots.items() if host not in lost}
    if job.spec.is_elastic and left:
        return shrunk(job, left, now)
    return stopped(job, StopReason.HOST_LOST, f"host {', '.join(lost)} was lost; it begins again", now)


# --- the policy's decision -------------------------------------------------------------------------------------------


def _decide(
    jobs: Mapping[str, QueueJob],
    hosts: Sequence[QueueHost],
    settings: QueueSettings,
    decide: Decide,
    now: float,
    standing: Standing | None,
    reports: Mapping[str, TrainingReport],
) -> Standing | None:
    """Return the decision that is in force: the previous one, or a new one; None if there is nothing to decide."""
    asked = [job for job in jobs.values() if _is_asked(job)]
    cluster = cluster_of(hosts, jobs.values())
    if not asked or not cluster.nodes:
        return None
    # Jobs that release their slots for others will wait afterwards: that does not count as a change.
    known = [job for job in jobs.values() if _is_asked(job) or job.why_stopped is StopReason.PREEMPT]
    key = (
        [(job.name, job.submitted, job.wanted, job.failures) for job in known],
        tuple(hosts),
        settings,
        [(name, report.version) for name, report in reports.items()],
    )
    if standing is not None and standing.holds(key, now):
        return standing
    what = average_durations(jobs.values())
    draining = {host.name for host in hosts if host.draining}
    views = [view_of(job, cluster, settings, what, reports.get(job.name), draining) for job in asked]
    return Standing(key, decide(cluster, views, now), cluster)


def _is_asked(job: QueueJob) -> bool:
    """Return whether the policy decides on a job."""
    return job.phase is Phase.WAITING or job.has_slots


def _carry_out(
    jobs: Mapping[str, QueueJob], standing: Standing, hosts: Sequence[QueueHost], facts: Facts, now: float
) -> tuple[dict[str, QueueJob], dict[str, str]]:
    """Move the jobs towards a decision; return them, and the reasons why some do not have their slots yet."""
    wanted = {name: standing.slots_of(name) for name in standing.decision.allocations if name in jobs}
    holders = {name: holder(job, facts.get(name, NOTHING_SEEN)) for name, job in jobs.items() if _is_counted(job)}
    slots = {host.name: host.slots for host in hosts if host.up and not host.draining}
    found, waits = next_slots(holders, wanted, slots)
    after = dict(jobs)
    for name, then in found.items():
        job = jobs[name]
        if job.phase is Phase.WAITING and then:
            after[name] = started(job, then, now)
        elif job.has_slots and not then:
            why = "it goes on elsewhere" if wanted.get(name) else "others come first now"
            after[name] = stopped(job, StopReason.PREEMPT, why, now)
        elif job.has_slots and then != job.slots:
            after[name] = with_slots(job, then, now, moved=have_same_shape(job.slots, then, standing.cluster))
    return after, waits


def _is_counted(job: QueueJob) -> bool:
    """Return whether a job has slots, waits for some, or may still hold some."""
    return job.phase is Phase.WAITING or job.phase.has_attempt


def holder(job: QueueJob, fact: AttemptFact) -> Holder:
    """Return what a job has and holds, and how it can change, for the handover of slots."""
    workers, report = job.spec.workers, fact.report
    lives = [host for host, told in report.hosts.items() if told.workers] if report is not None else []
    return Holder(
        has=job.slots if job.has_slots else {},
        held=job.held,
        least=workers.min,
        most=workers.max,
        # With a single worker, no other worker could carry its state to another host.
        resizes=job.spec.is_elastic and workers.max > 1,
        suspends=job.spec.how_suspended != "never",
        settled=job.phase is Phase.RUNNING,
        lives=lives or None,
    )


def _batches(jobs: Mapping[str, QueueJob], standing: Standing, facts: Facts) -> list[Action]:
    """Return the batch of each job that has its final slots: the one chosen for these slots, or the job's own."""
    decision = standing.decision
    actions: list[Action] = []
    for name, job in jobs.items():
        report = facts.get(name, NOTHING_SEEN).report
        if job.phase is not Phase.RUNNING or not job.spec.is_elastic or report is None:
            continue
        if job.slots == standing.slots_of(name):
            batch = decision.batches.get(name, 0)
            if batch != report.scheduled_batch:
                actions.append(SetBatch(name, job.attempt, batch))
    return actions


def is_quiet(jobs: Mapping[str, QueueJob], facts: Facts) -> bool:
    """Return whether nothing is under way that the next turn could advance."""
    return all(
        job.phase is Phase.RUNNING
        and facts.get(job.name, NOTHING_SEEN).seen is AttemptState.RUNS
        and job.held == job.slots
        for job in jobs.values()
        if job.phase.has_attempt
    )
