"""Decisions, as pure functions: the resources that a job requests from Ray, and each worker's place in the world."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from farandole.control.roster.events import Place, find_places

_UNITS = 10_000


class Placement(NamedTuple):
    """A placement group, and the workers in it."""

    strategy: str
    bundles: tuple[Mapping[str, float], ...]
    """The resources of each bundle."""
    workers: tuple[int, ...]
    """Number of workers in each bundle; ranks follow the order of bundles."""


def plan_placement(
    num_workers: int | None, num_hosts: int | None, workers_per_host: int, cpus: float, gpus: float
) -> Placement:
    """Plan the placement group of a job of fixed size.

    Args:
        num_workers: number of workers, wherever there is room.
        num_hosts: number of hosts, each with `workers_per_host` workers, instead of `num_workers`.
        workers_per_host: number of workers on each of these hosts.
        cpus: CPUs of each worker.
        gpus: GPUs of each worker.

    Example:
        >>> plan_placement(None, 2, 2, 1, 0)
        Placement(strategy='STRICT_SPREAD', bundles=({'CPU': 2}, {'CPU': 2}), workers=(2, 2))
    """
    if num_workers is not None:
        return Placement("PACK", (_resources(cpus, gpus, 1),) * num_workers, (1,) * num_workers)
    assert num_hosts is not None
    bundle = _resources(cpus, gpus, workers_per_host)
    return Placement("STRICT_SPREAD", (bundle,) * num_hosts, (workers_per_host,) * num_hosts)


def _resources(cpus: float, gpus: float, workers: int) -> dict[str, float]:
    each = {"CPU": cpus * workers, "GPU": gpus * workers}
    # Ray rejects an empty bundle.
    return {name: amount for name, amount in each.items() if amount} or {"CPU": 0.001}


def count_workers(bundles: Sequence[Mapping[str, float]], cpus: float, gpus: float) -> float:
    """Return the number of workers that bundles have room for, if nothing else uses them.

    Args:
        bundles: the resources of each bundle.
        cpus: CPUs of each worker.
        gpus: GPUs of each worker.

    Example:
        >>> count_workers([{"CPU": 1}, {"CPU": 4, "GPU": 1}], 1, 0), count_workers([{"CPU": 1}], 0, 0)
        (5, inf)
    """
    needed = {name: amount for name, amount in (("CPU", cpus), ("GPU", gpus)) if amount}
    if not needed:
        return math.inf
    return sum(min(_times(bundle.get(name, 0), amount) for name, amount in needed.items()) for bundle in bundles)


def find_node_places(nodes: Sequence[str]) -> tuple[Place, ...]:
    """Return the place of each worker, by rank.

    Args:
        nodes: the id of each worker's node, by rank.
    """
    return find_places([(node, node) for node in nodes])


def devices_by_node(nodes: Sequence[str], devices: Sequence[Sequence[str]]) -> list[str]:
    """Return CUDA_VISIBLE_DEVICES for each worker: all devices of the job on its node.

    Args:
        nodes: the id of each worker's node, by rank.
        devices: the devices that Ray has given to each worker, by rank.

    Example:
        >>> devices_by_node(["n", "m", "n"], [["3"], ["0"], ["1"]])
        ['3,1', '0', '3,1']
    """
    together: dict[str, dict[str, None]] = {}
    for node, own in zip(nodes, devices, strict=True):
        together.setdefault(node, {}).update(dict.fromkeys(own))
    return [",".join(together[node]) for node in nodes]


def count_slots(
    nodes: Sequence[Mapping[str, object]], cpus_per_worker: float, gpus_per_worker: float, use_gpu: bool
) -> dict[str, int]:
    """Return the number of workers that each alive node has room for; nodes without room are omitted.

    Args:
        nodes: the nodes, as `ray.nodes()` describes them.
        cpus_per_worker: CPUs of each worker.
        gpus_per_worker: GPUs of each worker; ignored without `use_gpu`.
        use_gpu: whether workers need GPUs.

    Returns:
        Slots by the address of the node.
    """
    found: dict[str, int] = {}
    for node in nodes:
        resources = node.get("Resources")
        if not node.get("Alive", node.get("alive")) or not isinstance(resources, Mapping):
            continue
        slots = _times(resources.get("CPU", 0), cpus_per_worker) if cpus_per_worker else None
        if use_gpu:
            by_gpu = _times(resources.get("GPU", 0), gpus_per_worker)
            slots = by_gpu if slots is None else min(slots, by_gpu)
        if slots:
            found[str(node["NodeManagerAddress"])] = slots
    return found


def _times(there: float, needed: float) -> int:
    """Return how often an amount is there. Ray counts in units of 1/10,000, so 10 times 0.1 is 1."""
    return round(there * _UNITS) // max(1, round(needed * _UNITS))
