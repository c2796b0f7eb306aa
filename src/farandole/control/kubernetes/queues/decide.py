"""From queues and jobs to what each job may have: `decide(forest, jobs, now, standing) -> admissions`. Pure.

    objects -> queues (`queue_spec`), jobs -> a policy's decision for each tree -> admissions

A decision holds until something happens that it did not reckon with, because to take workers from one job and give them
to another takes a while. Meanwhile the other waits: what it is to have is not free as long as pods of others hold it.
It follows from what is in the objects alone, so that another operator goes on where one was killed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farandole.control.kubernetes.accounting import Account
from farandole.control.kubernetes.admission import Admission, Figures
from farandole.control.kubernetes.model import Object
from farandole.control.kubernetes.queues import node_slots
from farandole.control.kubernetes.queues.node_slots import SLOT
from farandole.control.kubernetes.queues.queue_spec import Forest, Tree
from farandole.control.scheduler.cluster import Allocation, Cluster
from farandole.control.scheduler.job import Decision, JobView
from farandole.control.scheduler.room import lineage


@dataclass(frozen=True)
class QueuedJob:
    """A job that names a queue, and is to run.

    Attributes:
        name: in its namespace.
        queue: that it names.
        submitted: when it was made.
        least: workers that it can go on with.
        most: that it can use.
        asked: that it asks for.
        step: workers of a pod: it has a multiple of that.
        priority: its own.
        suspends: whether it can be suspended and go on later.
        held: workers whose pods are there, also those that are about to end.
        over: whether it is to have no workers any more, and only holds some.
        places: how many workers its pods have on which node, as far as they are on one.
    """

    name: str
    queue: str
    submitted: float
    least: int
    most: int
    asked: int
    step: int = 1
    priority: int = 0
    application: str = ""
    duration: float | None = None
    deadline: float | None = None
    suspends: bool = False
    account: Account = field(default_factory=Account)
    held: int = 0
    over: bool = False
    places: Mapping[str, int] = field(default_factory=dict)

    @property
    def elastic(self) -> bool:
        return self.least < self.most


@dataclass(frozen=True)
class Standing:
    """A decision for one tree, and what it was made of."""

    key: object
    decision: Decision
    cluster: Cluster = field(default_factory=lambda: Cluster(()))


@dataclass(frozen=True)
class Admissions:
    """What follows for the jobs of a namespace.

    Attributes:
        of_job: by name.
        figures: of each queue.
        standing: decisions by tree, for the next time; they need not survive.
        again_at: when to decide again even if nothing happens.
    """

    of_job: Mapping[str, Admission]
    figures: Mapping[str, Figures]
    standing: Mapping[str, Standing]
    again_at: float | None


def decide(
    forest: Forest, jobs: Sequence[QueuedJob], now: float, standing: Mapping[str, Standing] | None = None
) -> Admissions:
    """Return what each job may have now."""
    found: dict[str, Admission] = {}
    kept: dict[str, Standing] = {}
    for root, tree in forest.trees.items():
        mine = [job for job in jobs if forest.root_of.get(job.queue) == root]
        active = [job for job in mine if not job.over]
        decided = _decide(tree, forest, active, now, (standing or {}).get(root))
        kept[root] = decided
        found |= _carry_out(tree, mine, decided)
    for job in jobs:
        if job.name not in found and not job.over:
            # Nothing is taken from a job because a queue cannot be used.
            found[job.name] = Admission(job.account.workers, f"waits: {_no_queue(job.queue, forest)}")
    reviews = [each.decision.review_at for each in kept.values()]
    again = min((at for at in reviews if at is not None), default=None)
    return Admissions(found, _figures(forest, jobs, found), kept, again)


def _decide(tree: Tree, forest: Forest, jobs: Sequence[QueuedJob], now: float, before: Standing | None) -> Standing:
    key = (
        tree.root,
        tuple(sorted(tree.queues.items(), key=lambda item: item[0])),
        tree.nodes,
        tuple((job.name, job.submitted, job.queue, job.least, job.most, job.asked, job.priority) for job in jobs),
    )
    review_at = before.decision.review_at if before is not None else None
    if before is not None and before.key == key and (review_at is None or now < review_at):
        return before
    if not jobs:
        return Standing(key, Decision({}, {}))
    if tree.nodes:
        cluster, has = node_slots.seat(tree.nodes, jobs)
        views = [view_of(job, tree, forest.priority(job.queue), has.get(job.name)) for job in jobs]
        return Standing(key, tree.make_policy().decide(cluster, views, now), cluster)
    views = [view_of(job, tree, forest.priority(job.queue)) for job in jobs]
    # Where a queue has got fewer slots than its jobs have, those that cannot be suspended keep theirs.
    kept = sum(job.account.workers for job in jobs if not job.suspends)
    return Standing(key, tree.make_policy().decide(tree.cluster_of(max(tree.root.slots, kept)), views, now))


def view_of(job: QueuedJob, tree: Tree, more_priority: int, has: Allocation | None = None) -> JobView:
    """Return what a policy may see of a job, which has slots of one pool if nothing is known of nodes."""
    account = job.account
    least, asked = _up(job.least, job.step), _up(job.asked, job.step)
    most = max(least, min(job.most, tree.root.slots)) if job.elastic else asked
    asked = max(least, min(asked, most)) if job.elastic else asked
    if has is None and account.workers:
        has = Allocation(SLOT, ((0, account.workers),))
    return JobView(
        name=job.name,
        submitted=job.submitted,
        slots=asked,
        min_slots=least if job.elastic else asked,
        max_slots=most,
        application=job.application,
        priority=job.priority + more_priority,
        queue=job.queue,
        deadline=None if job.deadline is None else job.submitted + job.deadline,
        duration=job.duration,
        allocation=has,
        since=account.since,
        started=account.started,
        served_before=account.served,
        ran_before=account.ran,
        restarts=account.restarts,
        restart_cost=tree.root.restart_cost,
        preemptible=job.suspends,
        largest_run=account.largest,
    )


def _up(workers: int, step: int) -> int:
    return -(-workers // step) * step


def _carry_out(tree: Tree, jobs: Sequence[QueuedJob], standing: Standing) -> dict[str, Admission]:
    """Bring jobs nearer to a decision: what others still hold is not free."""
    decision = standing.decision
    wanted = {name: allocation.slots for name, allocation in decision.allocations.items()}
    free = tree.root.slots - sum(job.held if job.over else max(job.held, job.account.workers) for job in jobs)
    found = {}
    for job in sorted((job for job in jobs if not job.over), key=lambda job: (job.submitted, job.name)):
        want, has = wanted.get(job.name, 0), job.account.workers
        want -= want % job.step
        reason = decision.reasons.get(job.name, "waits: it was only just made")
        if has and (not want or (want != has and not job.elastic)) and not job.suspends:
            want = has  # A policy leaves alone what cannot be suspended; so does this, whatever it says.
        more = max(0, want - max(has, job.held))
        if more > free:
            possible = max(has, job.held) + max(0, free) - max(0, free) % job.step
            if not job.elastic or possible < job.least or not has:
                possible = has
                reason = f"waits: its {want} workers are still being given back by other jobs"
            want = min(want, possible)
            more = max(0, want - max(has, job.held))
        free -= more
        found[job.name] = Admission(want, reason, _nodes(tree, standing, job, want))
    return found


def _nodes(tree: Tree, standing: Standing, job: QueuedJob, want: int) -> Mapping[str, int]:
    """Return on which nodes a job is to have its workers: where it was decided, if it gets what was."""
    allocation = standing.decision.allocations.get(job.name)
    if not tree.nodes or allocation is None or allocation.slots != want:
        return job.account.nodes if want else {}
    return node_slots.by_name(standing.cluster, allocation)


def _no_queue(queue: str, forest: Forest) -> str:
    if queue in forest.faults:
        return f"queue {queue} cannot be used: {forest.faults[queue]}"
    near = difflib.get_close_matches(queue, forest.names, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"there is no queue {queue} in this namespace; {meant}There are {', '.join(forest.names)}"


def _figures(forest: Forest, jobs: Sequence[QueuedJob], found: Mapping[str, Admission]) -> dict[str, Figures]:
    figures = {name: Figures(fault=fault) for name, fault in forest.faults.items()}
    for root, tree in forest.trees.items():
        for name in tree.queues:
            mine = [
                job
                for job in jobs
                if not job.over and job.queue in tree.queues and name in lineage(job.queue, tree.rules)
            ]
            has = [found[job.name].workers for job in mine]
            running = sum(workers > 0 for workers in has)
            slots = tree.root.slots if name == root else 0
            figures[name] = Figures("", slots, sum(has), running, len(mine) - running)
    return figures


def is_served(job: Object) -> bool:
    """Return whether a queue of ours decides about a job: Kueue's users keep theirs."""
    labels = (job.get("metadata") or {}).get("labels") or {}
    return "kueue.x-k8s.io/queue-name" not in labels
