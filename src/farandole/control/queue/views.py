"""The policies' view of the queue, in which hosts have indices; and the way back to hosts by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from farandole.control.queue.model import Phase, QueueHost, QueueJob
from farandole.control.queue.settings import QueueSettings, user_queue
from farandole.control.scheduler.cluster import Cluster, Node
from farandole.control.scheduler.handover import Slots
from farandole.control.scheduler.job import PolicyJob, TrainingReport

AverageDurations = Mapping[str, float]
"""For each application, the average seconds that its finished jobs ran."""


def cluster_of(hosts: Sequence[QueueHost], jobs: Iterable[QueueJob]) -> Cluster:
    """Return the hosts as nodes. Of a draining host, only the slots of jobs there that cannot move are not away."""
    kept: dict[str, int] = {}
    for job in jobs:
        if job.has_slots and not job.spec.is_elastic:
            for name, number in job.slots.items():
                kept[name] = kept.get(name, 0) + number
    nodes: list[Node] = []
    away: list[Node] = []
    for host in hosts:
        usable = 0 if not host.up else min(host.slots, kept.get(host.name, 0)) if host.draining else host.slots
        nodes.append(Node(host.name, host.type, usable))
        away.append(Node(host.name, host.type, host.slots - usable))
    return Cluster(tuple(node for node in nodes if node.slots), tuple(node for node in away if node.slots))


def view_of(
    job: QueueJob,
    cluster: Cluster,
    settings: QueueSettings,
    known: AverageDurations,
    report: TrainingReport | None = None,
    draining: Collection[str] = (),
) -> PolicyJob:
    """Return the policies' view of a job.

    A job with slots on a draining host keeps them unless it is elastic: no other job could use them.
    """
    spec, account = job.spec, job.account
    most = job.wanted or spec.workers.max
    view = PolicyJob.of(spec, job.submitted, account, job.replicas, most, max(cluster.slots_of.values(), default=0))
    stays = not spec.is_elastic and any(host in draining for host in job.slots)
    return replace(
        view,
        name=job.name,
        queue=_queue(job, settings),
        user=job.owner.name,
        duration=spec.duration if spec.duration is not None else known.get(spec.application),
        allocation=cluster.allocation(job.slots) if job.has_slots else None,
        restarting_until=account.since + settings.restart_cost if job.has_slots else 0.0,
        restart_cost=settings.restart_cost,
        preemptible=view.preemptible and not stays,
        largest_run=job.largest_run,
        report=report,
    )


def _queue(job: QueueJob, settings: QueueSettings) -> str:
    has_quota = settings.quota(job.owner.name).slots is not None
    return user_queue(job.spec.queue, job.owner.name) if has_quota else job.spec.queue


def have_same_shape(one: Slots, other: Slots, cluster: Cluster) -> bool:
    """Return whether two allocations have the same type and shape, and so the same speed."""
    first, second = cluster.allocation(one), cluster.allocation(other)
    return first is not None and second is not None and (first.type, first.shape) == (second.type, second.shape)


def average_durations(jobs: Iterable[QueueJob]) -> AverageDurations:
    """Return the average seconds that finished jobs of each application ran."""
    times: dict[str, list[float]] = {}
    for job in jobs:
        if job.phase is Phase.SUCCEEDED and job.spec.application:
            times.setdefault(job.spec.application, []).append(job.account.ran_before)
    return {name: sum(each) / len(each) for name, each in times.items()}


def most_slots(hosts: Sequence[QueueHost]) -> int:
    """Return the most slots that one job can ever have: all slots of a job have the same type."""
    of_type: dict[str, int] = {}
    for host in hosts:
        of_type[host.type] = of_type.get(host.type, 0) + host.slots
    return max(of_type.values(), default=0)
