"""What policies are shown of the queue, and what their decisions mean for it: between hosts by name and by index."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from farandole.control.queue.model import Phase, QueueHost, QueueJob
from farandole.control.queue.settings import QueueSettings, user_queue
from farandole.control.scheduler.cluster import Cluster, Node
from farandole.control.scheduler.handover import Slots
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
    spec, account = job.spec, job.account
    most = job.wanted or spec.workers.max
    view = JobView.of(spec, job.submitted, account, job.replicas, most, max(cluster.slots_of.values(), default=0))
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


def is_alike(one: Slots, other: Slots, cluster: Cluster) -> bool:
    """Return whether two allocations have one type and one shape: what decides how fast a job is."""
    first, second = cluster.allocation(one), cluster.allocation(other)
    return first is not None and second is not None and (first.type, first.shape) == (second.type, second.shape)


def what_is_known(jobs: Iterable[QueueJob]) -> WhatIsKnown:
    """Return what finished jobs of each application needed, on average."""
    times: dict[str, list[float]] = {}
    for job in jobs:
        if job.phase is Phase.SUCCEEDED and job.spec.application:
            times.setdefault(job.spec.application, []).append(job.account.ran_before)
    return {name: sum(each) / len(each) for name, each in times.items()}


def most_slots(hosts: Sequence[QueueHost]) -> int:
    """Return the most slots that one job can ever have: jobs have slots of one type only."""
    of_type: dict[str, int] = {}
    for host in hosts:
        of_type[host.type] = of_type.get(host.type, 0) + host.slots
    return max(of_type.values(), default=0)
