"""Decides on the workers of each job in a queue: `decide(forest, jobs, now, standing) -> admissions`. Pure.

    objects -> queues (`queue_spec`), jobs -> a policy's decision for each tree -> admissions

A decision stays in force until its inputs change, because moving workers from one job to another takes a while.
Meanwhile the other job waits: slots are not free while pods of other jobs hold them. Decisions are derived only from
the objects, so that another operator can continue after one was killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from farandole.base.spelling import one_of
from farandole.control.kubernetes.admission import Admission, Figures
from farandole.control.kubernetes.queues import node_slots
from farandole.control.kubernetes.queues.node_slots import SLOT
from farandole.control.kubernetes.queues.queue_spec import Forest, Tree
from farandole.control.kubernetes.queues.queued_job import QueuedJob
from farandole.control.scheduler.cluster import Allocation
from farandole.control.scheduler.handover import Holder, Standing, count, next_slots
from farandole.control.scheduler.job import Decision, PolicyJob
from farandole.control.scheduler.room import lineage


@dataclass(frozen=True)
class Admissions:
    """The result for the jobs of a namespace.

    Attributes:
        of_job: admissions by job name.
        figures: the state of each queue.
        standing: decisions in force by tree, for the next call; they need not survive the process.
        again_at: when to decide again even if nothing happens, in seconds since 1970.
    """

    of_job: Mapping[str, Admission]
    figures: Mapping[str, Figures]
    standing: Mapping[str, Standing]
    again_at: float | None


def decide(
    forest: Forest, jobs: Sequence[QueuedJob], now: float, standing: Mapping[str, Standing] | None = None
) -> Admissions:
    """Return the workers that each job may have now."""
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
            # A job keeps its workers if its queue cannot be used.
            found[job.name] = Admission(job.account.slots, f"waits: {_no_queue(job.queue, forest)}")
    reviews = [each.decision.review_at for each in kept.values()]
    again = min((at for at in reviews if at is not None), default=None)
    return Admissions(found, _figures(forest, jobs, found), kept, again)


def _decide(tree: Tree, forest: Forest, jobs: Sequence[QueuedJob], now: float, before: Standing | None) -> Standing:
    key = (
        tree.root,
        tuple(sorted(tree.queues.items(), key=lambda item: item[0])),
        tree.nodes,
        tree.away,
        tuple((job.name, job.submitted, job.step, job.spec) for job in jobs),
    )
    if before is not None and before.holds(key, now):
        return before
    # If a queue now has fewer slots than its jobs, those that cannot be suspended keep theirs.
    kept = sum(job.account.slots for job in jobs if job.spec.how_suspended == "never")
    cluster = tree.cluster_of(max(tree.root.slots, kept))
    has: Mapping[str, Allocation] = {}
    if tree.nodes:
        cluster, has = node_slots.seat(tree.nodes, jobs)
        cluster = replace(cluster, away=tree.away)
    if not jobs:
        return Standing(key, Decision({}, {}), cluster)
    views = [view_of(job, tree, forest.priority(job.queue), has.get(job.name)) for job in jobs]
    return Standing(key, tree.make_policy().decide(cluster, views, now), cluster)


def view_of(job: QueuedJob, tree: Tree, more_priority: int, has: Allocation | None = None) -> PolicyJob:
    """Return the policies' view of a job; if nodes are unknown, its slots are those of a single pool."""
    account, asked = job.account, job.spec.workers.replicas
    view = PolicyJob.of(job.spec, job.submitted, account, asked, asked, tree.root.slots, job.step)
    if has is None and account.slots:
        has = Allocation(SLOT, ((0, account.slots),))
    return replace(
        view,
        name=job.name,
        priority=view.priority + more_priority,
        allocation=has,
        restart_cost=tree.root.restart_cost,
        largest_run=account.largest,
    )


def _carry_out(tree: Tree, jobs: Sequence[QueuedJob], standing: Standing) -> dict[str, Admission]:
    """Move jobs towards a decision, without slots that others still hold."""
    allocations, reasons = standing.decision.allocations, standing.decision.reasons
    jobs = sorted(jobs, key=lambda job: (job.submitted, job.name))
    # A job gets whole pods.
    wanted = {
        job.name: _pool(allocation.slots - allocation.slots % job.step)
        for job in jobs
        if (allocation := allocations.get(job.name)) is not None
    }
    then, waits = next_slots({job.name: _holder(job) for job in jobs}, wanted, _pool(tree.root.slots))
    found = {}
    for job in jobs:
        if not job.over:
            workers = count(then[job.name])
            reason = waits.get(job.name) or reasons.get(job.name, "waits: it was just created")
            found[job.name] = Admission(workers, reason, _nodes(tree, standing, job, workers))
    return found


def _pool(slots: int) -> dict[str, int]:
    """Return slots as those of a single place: the cluster's scheduler chooses the nodes of pods."""
    return {SLOT: slots} if slots else {}


def _holder(job: QueuedJob) -> Holder:
    workers = job.spec.workers
    return Holder(
        has=_pool(0 if job.over else job.account.slots),
        held=_pool(job.held),
        least=workers.min,
        most=workers.max,
        resizes=job.spec.is_elastic,
        suspends=job.spec.how_suspended != "never",
        step=job.step,
    )


def _nodes(tree: Tree, standing: Standing, job: QueuedJob, want: int) -> Mapping[str, int]:
    """Return the nodes for a job's workers: as decided, if the job gets what was decided."""
    allocation = standing.decision.allocations.get(job.name)
    if not tree.nodes or allocation is None or allocation.slots != want:
        return job.account.nodes if want else {}
    return node_slots.by_name(standing.cluster, allocation)


def _no_queue(queue: str, forest: Forest) -> str:
    if queue in forest.faults:
        return f"queue {queue} cannot be used: {forest.faults[queue]}"
    return f"there is no queue {queue} in this namespace; {one_of(queue, forest.names)}"


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
