"""One turn of the queue: from what it knows and what it sees to what it knows then, and what is to be done. Pure.

    jobs, facts -> observed -> hosts that are lost -> the policy's decision -> jobs, actions

The daemon writes the jobs down before it carries any action out, and every action may be carried out twice. So it may
be killed between any two steps: the next turn begins from what was written and from what is seen, and says again what
is still to be done. Nothing depends on what the daemon remembers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from farandole.control.queue.model import (
    NOTHING_SEEN,
    Action,
    AttemptFact,
    Event,
    Phase,
    QueueHost,
    QueueJob,
    Seen,
    SetBatch,
    Slots,
    Why,
    count,
)
from farandole.control.queue.settings import QueueSettings
from farandole.control.queue.transitions import (
    actions_of,
    observed,
    shrunk,
    started,
    stopped,
    story,
    with_slots,
)
from farandole.control.queue.views import cluster_of, free_slots, is_alike, slots_of, view_of, what_is_known
from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import Decision, JobView, Report

Facts = Mapping[str, AttemptFact]
"""By job."""


class Decide(Protocol):
    """A policy with its rules."""

    def __call__(self, cluster: Cluster, jobs: Sequence[JobView], now: float) -> Decision:
        """Return who gets what, and why."""


class Standing(NamedTuple):
    """A decision that holds until something happens that it did not reckon with.

    To take slots from one job and give them to another takes several turns. The policy is not asked again in between:
    it would see jobs that have just lost their slots, and could think again.
    """

    key: object
    """What the decision was made of: jobs and what they want, hosts, settings, reports."""
    cluster: Cluster
    decision: Decision


class Turn(NamedTuple):
    """What a turn comes to."""

    jobs: dict[str, QueueJob]
    """All of them."""
    actions: list[Action]
    events: list[Event]
    reasons: dict[str, str]
    """A sentence for each job that the policy was asked about."""
    standing: Standing | None
    """For the next turn; it need not survive the daemon."""


def turn(
    jobs: Mapping[str, QueueJob],
    hosts: Sequence[QueueHost],
    settings: QueueSettings,
    facts: Facts,
    decide: Decide,
    now: float,
    standing: Standing | None = None,
    reports: Mapping[str, Report] | None = None,
) -> Turn:
    """Return what follows from what is known and seen.

    Args:
        jobs: by name.
        hosts: of the queue.
        settings: of the queue.
        facts: of all jobs with an attempt.
        decide: the policy.
        now: seconds since 1970.
        standing: the decision of the turn before.
        reports: what jobs measure, by name, for policies that size jobs by it.
    """
    before = dict(jobs)
    seen = {name: _look(job, facts, hosts, now) for name, job in before.items()}
    after = seen
    standing = _decide(after, hosts, settings, decide, now, standing, reports or {})
    reasons: dict[str, str] = {}
    if standing is not None:
        after, waits = _carry_out(after, standing, hosts, facts, now)
        reasons = {**standing.decision.reasons, **waits}
    else:
        why = "all hosts that answer are being drained" if any(host.up for host in hosts) else "no host can be reached"
        reasons = {name: f"waits: {why}" for name, job in after.items() if job.phase is Phase.WAITING}
    steps = ((before, seen), (seen, after))  # A job may be lost and be given other slots in one turn.
    events = [
        Event(name, said)
        for earlier, later in steps
        for name, job in later.items()
        if (said := story(earlier[name], job))
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
"""What is seen of an attempt that was only just decided on."""


def _look(job: QueueJob, facts: Facts, hosts: Sequence[QueueHost], now: float) -> QueueJob:
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
    return stopped(job, Why.HOST_LOST, f"host {', '.join(lost)} was lost; it begins again", now)


# --- the policy's decision -------------------------------------------------------------------------------------------


def _decide(
    jobs: Mapping[str, QueueJob],
    hosts: Sequence[QueueHost],
    settings: QueueSettings,
    decide: Decide,
    now: float,
    standing: Standing | None,
    reports: Mapping[str, Report],
) -> Standing | None:
    """Return the decision that holds: the standing one, or another; None: there is nothing to decide."""
    asked = [job for job in jobs.values() if _is_asked(job)]
    cluster = cluster_of(hosts, jobs.values())
    if not asked or not cluster.nodes:
        return None
    # Those that are to give their slots back for others wait as soon as they have: that is nothing new.
    known = [job for job in jobs.values() if _is_asked(job) or job.why_stopped is Why.PREEMPT]
    key = (
        [(job.name, job.submitted, job.wanted, job.failures) for job in known],
        tuple(hosts),
        settings,
        [(name, report.version) for name, report in reports.items()],
    )
    if standing is not None and standing.key == key:
        review_at = standing.decision.review_at
        if review_at is None or now < review_at:
            return standing
    what = what_is_known(jobs.values())
    draining = {host.name for host in hosts if host.draining}
    views = [view_of(job, cluster, settings, what, reports.get(job.name), draining) for job in asked]
    return Standing(key, cluster, decide(cluster, views, now))


def _is_asked(job: QueueJob) -> bool:
    """Return whether the policy is asked about a job."""
    return job.phase is Phase.WAITING or job.has_slots


def _carry_out(
    jobs: Mapping[str, QueueJob], standing: Standing, hosts: Sequence[QueueHost], facts: Facts, now: float
) -> tuple[dict[str, QueueJob], dict[str, str]]:
    """Bring the jobs nearer to a decision; return them, and why some do not have their slots yet."""
    allocations = standing.decision.allocations
    wanted = {name: slots_of(allocation, standing.cluster) for name, allocation in allocations.items() if name in jobs}
    return _give(_take(jobs, wanted, now), wanted, hosts, standing.cluster, facts, now)


def _batches(jobs: Mapping[str, QueueJob], standing: Standing, facts: Facts) -> list[Action]:
    """Let jobs that have the slots they are to have follow the batch that was chosen for these, or their own."""
    decision = standing.decision
    actions: list[Action] = []
    for name, job in jobs.items():
        report = facts.get(name, NOTHING_SEEN).report
        if job.phase is not Phase.RUNNING or not job.spec.is_elastic or report is None:
            continue
        if job.slots == slots_of(decision.allocations.get(name), standing.cluster):
            batch = decision.batches.get(name, 0)
            if batch != report.scheduled_batch:
                actions.append(SetBatch(name, job.attempt, batch))
    return actions


def _take(jobs: Mapping[str, QueueJob], wanted: Mapping[str, Slots], now: float) -> dict[str, QueueJob]:
    """Take slots from jobs that are to have none, or others and cannot change them while they run."""
    after = dict(jobs)
    for name, job in jobs.items():
        want = wanted.get(name, {})
        if not job.has_slots or want == job.slots or job.spec.how_suspended == "never":
            continue
        if not want:
            after[name] = stopped(job, Why.PREEMPT, "others come first now", now)
        elif not job.spec.is_elastic:
            after[name] = stopped(job, Why.PREEMPT, "it goes on elsewhere", now)
    return after


def _give(
    jobs: Mapping[str, QueueJob],
    wanted: Mapping[str, Slots],
    hosts: Sequence[QueueHost],
    cluster: Cluster,
    facts: Facts,
    now: float,
) -> tuple[dict[str, QueueJob], dict[str, str]]:
    """Give slots that are free to jobs that are to have them; return the jobs, and why some do not have them yet."""
    after = dict(jobs)
    waits: dict[str, str] = {}
    for name, job in jobs.items():
        want = wanted.get(name, {})
        if not want or want == job.slots or job.phase not in (Phase.WAITING, Phase.RUNNING):
            continue
        free = free_slots(hosts, after.values())
        if job.phase is Phase.WAITING:
            if all(free.get(host, 0) >= number for host, number in want.items()):
                after[name] = started(job, want, now)
            else:
                waits[name] = f"waits: its slots are still being given back by other jobs ({count(want)} are its own)"
        elif job.spec.is_elastic:
            now_possible = toward(job, want, free, facts.get(name, NOTHING_SEEN))
            if now_possible != job.slots:
                after[name] = with_slots(job, now_possible, now, moved=is_alike(job.slots, now_possible, cluster))
    return after, waits


def toward(job: QueueJob, want: Slots, free: Slots, fact: AttemptFact) -> dict[str, int]:
    """Return the slots that an elastic job can have next, on its way to those that it is to have.

    Workers that stay carry the state of the training to those that come. So a job that is to move altogether first
    gets workers at the new place, and gives the old one up when some of them are there; and it never has fewer than
    it can go on with.
    """
    has = job.slots
    # What it holds beyond its slots, because workers are about to leave, it can have again.
    reach = {host: free.get(host, 0) + job.held.get(host, 0) for host in want}
    grown = {host: number for host in want if (number := min(want[host], reach[host]))}
    stays = sum(min(has.get(host, 0), number) for host, number in grown.items())
    report = fact.report
    arrived = (
        report is not None
        and report.at > job.changed
        and any(report.hosts[host].workers for host in grown if host in report.hosts)
    )
    if count(grown) >= job.spec.workers.min and (stays or arrived):
        return grown
    both = dict(has)
    for host, number in grown.items():
        both[host] = max(number, both.get(host, 0))
    return _at_most(job.spec.workers.max, both, first=[host for host in has if host not in grown])


def _at_most(most: int, slots: dict[str, int], first: Sequence[str]) -> dict[str, int]:
    """Return slots without those that are too many: of some hosts first, but for one slot there."""
    over = count(slots) - most
    for host in [*first, *(host for host in slots if host not in first)]:
        given_up = max(0, min(over, slots[host] - (host in first)))
        slots[host] -= given_up
        over -= given_up
    return {host: number for host, number in slots.items() if number}


def is_quiet(jobs: Mapping[str, QueueJob], facts: Facts) -> bool:
    """Return whether nothing is under way that the next turn could bring further."""
    return all(
        job.phase is Phase.RUNNING and facts.get(job.name, NOTHING_SEEN).seen is Seen.RUNS and job.held == job.slots
        for job in jobs.values()
        if job.phase.has_attempt
    )
