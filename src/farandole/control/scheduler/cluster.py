"""A cluster, and the allocation of its slots to jobs.

A *node* is a host with a number of equal *slots*, and has a *type*: the model of its accelerator. An *allocation* is
the number of a job's slots on each node. A job has slots of one type only.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from farandole.control.scheduler.errors import ClusterError

MOST_NODES = 1_000_000


@dataclass(frozen=True)
class Node:
    """A host with its name, the type of its slots, and their number."""

    name: str
    type: str
    slots: int


@dataclass(frozen=True)
class Allocation:
    """The slots that a job has, all of one type of node."""

    type: str
    parts: tuple[tuple[int, int], ...]
    """Pairs of a node's index in the cluster and a number of slots, sorted by node."""

    @cached_property
    def slots(self) -> int:
        return sum(count for _, count in self.parts)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The numbers of slots on the nodes, which determine the job's speed."""
        return tuple(count for _, count in self.parts)


@dataclass(frozen=True)
class Cluster:
    """Nodes in a fixed order; an allocation refers to them by their indices."""

    nodes: tuple[Node, ...]
    away: tuple[Node, ...] = ()
    """Nodes, and parts of nodes, that cannot take work now but may do so later. They have no indices."""

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types of nodes, in the order in which they first occur."""
        return tuple(dict.fromkeys(node.type for node in self.nodes))

    @cached_property
    def slots(self) -> int:
        return sum(node.slots for node in self.nodes)

    @cached_property
    def slots_of(self) -> dict[str, int]:
        """The number of slots of each type."""
        return {type_: sum(node.slots for node in self.nodes if node.type == type_) for type_ in self.types}

    @cached_property
    def smallest_of(self) -> dict[str, int]:
        """The number of slots of each type's smallest node."""
        return {type_: min(self.nodes[index].slots for index in self.indices_of[type_]) for type_ in self.types}

    @cached_property
    def indices_of(self) -> dict[str, tuple[int, ...]]:
        """The indices of each type's nodes."""
        return {
            type_: tuple(index for index, node in enumerate(self.nodes) if node.type == type_) for type_ in self.types
        }

    def with_away(self, type_: str) -> Cluster:
        """Return the nodes of a type as they are when none of them is away."""
        slots: dict[str, int] = {}
        for node in (*self.nodes, *self.away):
            if node.type == type_:
                slots[node.name] = slots.get(node.name, 0) + node.slots
        return Cluster(tuple(Node(name, type_, number) for name, number in slots.items()))

    def by_name(self, allocation: Allocation) -> dict[str, int]:
        """Return the slots of an allocation by the names of its nodes."""
        return {self.nodes[index].name: slots for index, slots in allocation.parts}

    def allocation(self, slots: Mapping[str, int]) -> Allocation | None:
        """Return slots by names of nodes as an allocation. Unknown nodes are ignored; None: no slots are left."""
        index = {node.name: number for number, node in enumerate(self.nodes)}
        parts = tuple(sorted((index[name], number) for name, number in slots.items() if name in index and number))
        return Allocation(self.nodes[parts[0][0]].type, parts) if parts else None


_PART = re.compile(r"(?:(?P<type>[A-Za-z][\w.-]*):)?(?P<nodes>\d+)x(?P<slots>\d+)")


def parse_cluster(text: str) -> Cluster:
    """Parse a cluster such as `aws:6x4,dgx-ext:2x8`: for each type, the number of nodes times the slots of each.

    The type may be omitted if there is only one (`16x4`).

    Raises:
        ClusterError: the text is not a valid cluster.
    """
    nodes: list[Node] = []
    seen: set[str] = set()
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise ClusterError(f"{part!r} is not a valid cluster", "write TYPE:NODESxSLOTS, such as aws:6x4,rtx:3x8")
        type_, count, slots = found["type"] or "slot", int(found["nodes"]), int(found["slots"])
        if not count or not slots:
            raise ClusterError(f"{part!r} has no slots", "a cluster needs at least one node with one slot")
        if len(nodes) + count > MOST_NODES:
            raise ClusterError(f"{part!r} has too many nodes", f"a cluster has at most {MOST_NODES:,}")
        if type_ in seen:
            raise ClusterError(f"type {type_} occurs twice", "nodes of one type have equal numbers of slots")
        seen.add(type_)
        nodes += [Node(f"{type_}-{index}", type_, slots) for index in range(count)]
    return Cluster(tuple(nodes))


@dataclass
class FreeSlots:
    """The free slots of each node while a decision is being made."""

    cluster: Cluster
    free: list[int] = field(default_factory=list)
    """Number of free slots by index of the node."""
    of_type: dict[str, int] = field(default_factory=dict)
    """Number of free slots by type."""
    alike: dict[str, dict[tuple[int, int], list[int]]] = field(default_factory=dict)
    """Sorted indices of nodes with free slots, by type, and then by numbers of free slots and of all slots."""

    def __post_init__(self) -> None:
        if not self.free:
            self.free = [node.slots for node in self.cluster.nodes]
            self.of_type = dict(self.cluster.slots_of)
            for type_, indices in self.cluster.indices_of.items():
                kinds: dict[tuple[int, int], list[int]] = {}
                for node in sorted(indices):
                    kinds.setdefault((self.free[node], self.free[node]), []).append(node)
                self.alike[type_] = kinds

    def copy(self) -> FreeSlots:
        alike = {type_: {kind: list(nodes) for kind, nodes in kinds.items()} for type_, kinds in self.alike.items()}
        return FreeSlots(self.cluster, list(self.free), dict(self.of_type), alike)

    @property
    def total(self) -> int:
        return sum(self.of_type.values())

    def fits(self, allocation: Allocation) -> bool:
        """Return whether all slots of an allocation are free."""
        return all(self.free[node] >= count for node, count in allocation.parts)

    def take(self, allocation: Allocation) -> None:
        """Mark slots as used. They must be free."""
        for node, count in allocation.parts:
            assert self.free[node] >= count, f"node {node} has {self.free[node]} free slots, not {count}"
            self._add(allocation.type, node, -count)

    def give(self, allocations: Iterable[Allocation]) -> None:
        """Mark the slots of allocations as free."""
        for allocation in allocations:
            for node, count in allocation.parts:
                self._add(allocation.type, node, count)

    def _add(self, type_: str, node: int, slots: int) -> None:
        """Change the number of free slots of a node by `slots`."""
        kinds, all_slots, before = self.alike[type_], self.cluster.nodes[node].slots, self.free[node]
        if before:
            nodes = kinds[before, all_slots]
            del nodes[bisect.bisect_left(nodes, node)]
            if not nodes:
                del kinds[before, all_slots]
        if before + slots:
            bisect.insort(kinds.setdefault((before + slots, all_slots), []), node)
        self.free[node] += slots
        self.of_type[type_] += slots
