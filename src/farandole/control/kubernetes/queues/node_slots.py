"""The slots of a cluster's nodes, for queues that name a resource: their number, and each job's share. Pure.

Requests of pods for other resources, and pods that belong to no queue, are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from farandole.control.kubernetes import resources
from farandole.control.kubernetes.model import Object
from farandole.control.kubernetes.queues.queued_job import QueuedJob
from farandole.control.scheduler.cluster import Allocation, Cluster, Node

SLOT = "slot"
_ELSEWHERE = "elsewhere"


def count(nodes: Iterable[Object], resource: str, of_slot: Decimal, labels: Mapping[str, str]) -> Cluster:
    """Return the nodes that have a resource, with their numbers of slots. Those that accept no pods now are away.

    Args:
        nodes: the cluster's nodes, in the form of the API.
        of_slot: amount of the resource for each slot.
        labels: labels that a node must have.
    """
    found: list[Node] = []
    away: list[Node] = []
    for node in sorted(nodes, key=lambda node: str(node["metadata"]["name"])):
        given = node["metadata"].get("labels") or {}
        if any(given.get(name) != value for name, value in labels.items()):
            continue
        slots = int(resources.amount((node.get("status") or {}).get("allocatable"), resource) // of_slot)
        if slots > 0:
            (found if _accepts_pods(node) else away).append(Node(str(node["metadata"]["name"]), SLOT, slots))
    return Cluster(tuple(found), tuple(away))


def _accepts_pods(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    return ready and not (node.get("spec") or {}).get("unschedulable")


def seat(nodes: Sequence[Node], jobs: Sequence[QueuedJob]) -> tuple[Cluster, dict[str, Allocation]]:
    """Return the nodes in the policies' form, and the slots of each job on them.

    A job has slots on its pods' nodes; for pods without a node, on the nodes that were assigned to them; otherwise on
    any free slots. If there are too few because nodes are gone, a node is added to the cluster, only for these slots.
    """
    index = {node.name: number for number, node in enumerate(nodes)}
    free = [node.slots for node in nodes]
    parts: dict[str, dict[int, int]] = {job.name: {} for job in jobs}
    left = {job.name: job.account.slots for job in jobs}

    def take(job: str, number: int, most: int) -> None:
        slots = min(most, free[number], left[job])
        if slots > 0:
            free[number] -= slots
            left[job] -= slots
            parts[job][number] = parts[job].get(number, 0) + slots

    for places in ({job.name: job.places for job in jobs}, {job.name: job.account.nodes for job in jobs}):
        for name, mine in places.items():
            for node, slots in sorted(mine.items()):
                if node in index:
                    take(name, index[node], slots - parts[name].get(index[node], 0))
    for job in jobs:
        for number in sorted(range(len(nodes)), key=lambda number: (-free[number], number)):
            take(job.name, number, left[job.name])
    more = sum(left.values())
    cluster = Cluster((*nodes, Node(_ELSEWHERE, SLOT, more)) if more else tuple(nodes))
    for name, slots in left.items():
        if slots:
            parts[name][len(nodes)] = slots
    return cluster, {name: Allocation(SLOT, tuple(sorted(mine.items()))) for name, mine in parts.items() if mine}


def by_name(cluster: Cluster, allocation: Allocation) -> dict[str, int]:
    """Return an allocation by node name."""
    return {name: slots for name, slots in cluster.by_name(allocation).items() if name != _ELSEWHERE}
