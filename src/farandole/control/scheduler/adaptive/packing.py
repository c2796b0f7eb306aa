"""Placement of sized jobs on nodes: jobs that keep their size keep their nodes where possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from farandole.control.scheduler.adaptive.candidates import Candidate
from farandole.control.scheduler.cluster import Allocation, Cluster, FreeSlots
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.placement.by_node import Place


class Sized(NamedTuple):
    """A job and its size."""

    job: PolicyJob
    candidate: Candidate


def place_all(cluster: Cluster, grants: Sequence[Sized], place: Place) -> dict[str, Allocation]:
    """Return the allocation of each job by its name.

    If an allocation would use more nodes than its size needs, all jobs on its type of node are placed again, large ones
    first. A rigid job that must not be suspended keeps its nodes.
    """
    allocations: dict[str, Allocation] = {}
    for type_ in cluster.types:
        mine = [one for one in grants if one.candidate.type == type_]
        packed = _place(cluster, mine, place, keep=True)
        if any(len(packed[job.name].parts) > candidate.nodes for job, candidate in mine):
            packed = _place(cluster, mine, place, keep=False)
        allocations.update(packed)
    return allocations


def _place(cluster: Cluster, grants: Sequence[Sized], place: Place, keep: bool) -> dict[str, Allocation]:
    free = FreeSlots(cluster)
    packed: dict[str, Allocation] = {}
    moving: list[Sized] = []
    for job, candidate in grants:
        had = job.allocation
        stays = had is not None and had.type == candidate.type and had.slots == candidate.slots
        fixed = not job.preemptible and not job.elastic
        if had is not None and stays and (fixed or (keep and len(had.parts) == candidate.nodes)):
            free.take(had)
            packed[job.name] = had
        else:
            moving.append(Sized(job, candidate))
    for job, candidate in sorted(moving, key=lambda one: -one.candidate.slots):
        allocation = place(free, candidate.type, candidate.slots)
        assert allocation is not None
        free.take(allocation)
        packed[job.name] = allocation
    return packed
