"""What policies are shown of the queue, and what their decisions mean for it: between hosts by name and by index."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from farandole.control.queue.model import Phase, QueueHost, QueueJob, Slots
from farandole.control.queue.settings import QueueSettings, user_queue
from farandole.control.scheduler.cluster import Allocation, Cluster, Node
from farandole.control.scheduler.job import JobView, Report

WhatIsKnown = Mapping[str, float]
"""For each application, the seconds that its finished jobs took on average."""


def cluster_of(hosts: Sequence[QueueHost], jobs: Iterable[QueueJob]) -> Cluster:
    """Return the hosts that can be used. One that is draining has the slots that jobs which cannot move have there."""
    kept: dict[str, int] = {}
    for job in jobs:
        if job.has_slots and not job.spec.is_elastic:
            for host, number in job.slots.items():
                kept[host] = kept.get(host, 0) + number
    nodes = [
        Node(host.name, host.type, min(host.slots, kept.get(host.name, 0)) if host.draining else host.slots)
        for host in hosts
        if host.up
    ]
    return Cluster(tuple(node for node in nodes if node.slots))


def view_of(
    job: QueueJob,
    cluster: Cluster,
    settings: QueueSettings,
    known: WhatIsKnown,
    report: Report | None = None,
    draining: Collection[str] = (),
) -> JobView:
    """Return what a policy may see of a job.

    One that has slots on a host that is draining keeps them, unless it is elastic: nobody else could have them.
    """
    workers = job.spec.workers
    most = max(cluster.slots_of.values(), default=0)
    elastic = job.spec.is_elastic
    largest = max(workers.min, min(job.wanted or workers.max, most)) if elastic else job.replicas
    asked = max(workers.min, min(job.replicas, largest)) if elastic else job.replicas
    spec = job.spec
    return JobView(
        name=job.name,
        submitted=job.submitted,
        slots=asked,
        min_slots=workers.min if elastic else asked,
        max_slots=largest,
        application=spec.application,
        priority=spec.priority,
        queue=_queue(job, settings),
        user=job.owner.name,
        deadline=None if spec.deadline is None else job.submitted + spec.deadline,
        duration=spec.duration if spec.duration is not None else known.get(spec.application),
        allocation=allocation_of(job.slots, cluster) if job.has_slots else None,
        since=job.since,
        started=job.started,
        served_before=job.served_before,
        ran_before=job.ran_before,
        restarts=job.restarts,
        restarting_until=job.since + settings.restart_cost if job.has_slots else 0.0,
        restart_cost=settings.restart_cost,
        preemptible=spec.how_suspended != "never" and (elastic or not any(host in draining for host in job.slots)),
        largest_run=job.largest_run,
        report=report,
    )


def _queue(job: QueueJob, settings: QueueSettings) -> str:
    has_quota = settings.quota(job.owner.name).slots is not None
    return user_queue(job.spec.queue, job.owner.name) if has_quota else job.spec.queue


def allocation_of(slots: Slots, cluster: Cluster) -> Allocation | None:
    """Return slots as an allocation, without those on hosts that are not in the cluster; None if none is left."""
    index = {node.name: at for at, node in enumerate(cluster.nodes)}
    parts = tuple(sorted((index[host], number) for host, number in slots.items() if host in index and number))
    return Allocation(cluster.nodes[parts[0][0]].type, parts) if parts else None


def slots_of(allocation: Allocation | None, cluster: Cluster) -> dict[str, int]:
    """Return an allocation by names of hosts."""
    if allocation is None:
        return {}
    return {cluster.nodes[node].name: number for node, number in allocation.parts}


def is_alike(one: Slots, other: Slots, cluster: Cluster) -> bool:
    """Return whether two allocations have one type and one shape: what decides how fast a job is."""
    first, second = allocation_of(one, cluster), allocation_of(other, cluster)
    return first is not None and second is not None and (first.type, first.shape) == (second.type, second.shape)


def free_slots(hosts: Sequence[QueueHost], jobs: Iterable[QueueJob]) -> dict[str, int]:
    """Return the slots of each host that nothing can be using now."""
    free = {host.name: host.slots for host in hosts if host.up and not host.draining}
    for job in jobs:
        if job.phase.has_attempt:
            for host, number in job.held.items():
                if host in free:
                    free[host] -= number
    return {host: max(0, number) for host, number in free.items()}


def what_is_known(jobs: Iterable[QueueJob]) -> WhatIsKnown:
    """Return what finished jobs of each application needed, on average."""
    times: dict[str, list[float]] = {}
    for job in jobs:
        if job.phase is Phase.SUCCEEDED and job.spec.application:
            times.setdefault(job.spec.application, []).append(job.ran_before)
    return {name: sum(each) / len(each) for name, each in times.items()}


def most_slots(hosts: Sequence[QueueHost]) -> int:
    """Return the most slots that one job can ever have: jobs have slots of one type only."""
    of_type: dict[str, int] = {}
    for host in hosts:
        of_type[host.type] = of_type.get(host.type, 0) + host.slots
    return max(of_type.values(), default=0)
