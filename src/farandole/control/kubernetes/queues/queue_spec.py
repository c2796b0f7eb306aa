"""Parses Queues into trees, each with its shared slots, its policy and its rules. Pure.

The input may be anything: for a queue that cannot be used, the result has a sentence, and its jobs wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from farandole.control.kubernetes.field_reader import FieldReader
from farandole.control.kubernetes.model import Object
from farandole.control.kubernetes.queues import node_slots
from farandole.control.kubernetes.queues.node_slots import SLOT
from farandole.control.scheduler.cluster import Cluster, Node
from farandole.control.scheduler.errors import SchedulerError
from farandole.control.scheduler.policies import DEFAULT_POLICY, make_policy
from farandole.control.scheduler.policy import Policy
from farandole.control.scheduler.rules import Queue, Rules

MOST_SLOTS = 1_000_000
_ROOT_KEYS = ("slots", "resource", "resourcePerSlot", "nodes", "policy", "quantum", "ageing", "round", "restartCost")
"""Fields that only a queue without a parent has: they apply to its whole tree."""


@dataclass(frozen=True)
class QueueSpec(Queue):
    """A Queue's spec: the part that policies use, and the fields that only Kubernetes has."""

    priority: int = 0
    """Added to the priorities of its jobs."""
    slots: int = 0
    resource: str = ""
    """A resource of nodes that is counted instead of `slots`."""
    of_slot: Decimal = Decimal(1)
    """Amount of the resource for each slot."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes that are counted."""
    policy: str = DEFAULT_POLICY
    quantum: float = Rules.quantum
    ageing: float = Rules.ageing
    round: float = Rules.round
    restart_cost: float = 0.0


@dataclass(frozen=True)
class Tree:
    """Queues that share slots: a queue without a parent, and all queues below it."""

    root: QueueSpec
    queues: Mapping[str, QueueSpec]
    rules: Rules
    nodes: tuple[Node, ...] = ()
    """The nodes with their slots; empty if the nodes of pods are unknown."""
    away: tuple[Node, ...] = ()
    """Nodes that accept no pods now."""

    def cluster_of(self, slots: int) -> Cluster:
        """Return slots in the policies' form. The cluster's own scheduler chooses the nodes of pods."""
        return Cluster((Node(self.root.name, SLOT, slots),))

    def make_policy(self) -> Policy:
        return make_policy(self.root.policy, self.rules)


@dataclass(frozen=True)
class Forest:
    """All queues of a namespace.

    Attributes:
        trees: trees by the name of their root.
        root_of: the root of each usable queue.
        faults: sentences about queues that cannot be used.
    """

    trees: Mapping[str, Tree] = field(default_factory=dict)
    root_of: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return sorted({*self.root_of, *self.faults})

    def tree_of(self, queue: str) -> Tree | None:
        """Return the tree of a queue, if both can be used."""
        return self.trees.get(self.root_of.get(queue, ""))

    def priority(self, queue: str) -> int:
        """Return the sum that a queue, and those above it, add to the priorities of their jobs."""
        tree, total, name = self.tree_of(queue), 0, queue
        while tree is not None and name:
            total += tree.queues[name].priority
            name = tree.queues[name].parent
        return total


def read_queues(objects: Sequence[Object], nodes: Sequence[Object] = ()) -> Forest:
    """Return the queues of one namespace, in a cluster with these nodes."""
    specs: dict[str, QueueSpec] = {}
    faults: dict[str, str] = {}
    for each in sorted(objects, key=lambda each: str(each["metadata"]["name"])):
        name = str(each["metadata"]["name"])
        reader = FieldReader()
        spec = _read(name, each.get("spec"), reader)
        if reader.faults:
            faults[name] = reader.faults[0]
        else:
            specs[name] = spec
    root_of: dict[str, str] = {}
    for name in specs:
        top = _root(name, specs)
        if isinstance(top, QueueSpec):
            root_of[name] = top.name
        else:
            faults[name] = top[0]
    trees = {}
    for root in dict.fromkeys(root_of.values()):
        tree = _tree(root, {name: specs[name] for name, mine in root_of.items() if mine == root}, nodes)
        if fault := _policy_fault(tree) or _nodes_fault(tree):
            faults |= {name: fault for name in tree.queues}
        else:
            trees[root] = tree
    return Forest(trees, {name: root for name, root in root_of.items() if root in trees}, faults)


def _read(name: str, given: Any, reader: FieldReader) -> QueueSpec:
    if not isinstance(given, Mapping):
        reader.faults.append("it has no spec")
        given = {}
    spec = QueueSpec(
        name,
        parent=reader.text(given, "parent"),
        weight=reader.number(given, "weight", 1.0),
        quota=reader.integer(given, "quota", None, 0, MOST_SLOTS),
        limit=reader.integer(given, "limit", None, 1, MOST_SLOTS),
        priority=reader.integer(given, "priority", 0, -MOST_SLOTS, MOST_SLOTS) or 0,
        slots=reader.integer(given, "slots", 0, 1, MOST_SLOTS) or 0,
        resource=reader.text(given, "resource"),
        of_slot=reader.amount(given, "resourcePerSlot"),
        labels=reader.texts(given, "nodes"),
        policy=reader.text(given, "policy", DEFAULT_POLICY),
        quantum=reader.number(given, "quantum", Rules.quantum),
        ageing=reader.number(given, "ageing", Rules.ageing),
        round=reader.number(given, "round", Rules.round),
        restart_cost=reader.number(given, "restartCost", 0.0, zero=True),
    )
    if spec.slots and spec.resource:
        reader.faults.append("slots: they are counted on nodes, because a resource is set; omit one of the two")
    if not spec.parent and not (spec.slots or spec.resource):
        reader.faults.append(
            "slots: a queue without a parent needs the number of workers that it shares, such as slots: 16"
        )
    surplus = [key for key in _ROOT_KEYS if spec.parent and given.get(key) is not None]
    if surplus:
        reader.faults.append(f"{surplus[0]}: only the queue at the top sets that, for all below it; omit it here")
    return spec


def _root(name: str, specs: Mapping[str, QueueSpec]) -> QueueSpec | tuple[str]:
    """Return the root of a queue's tree, or a sentence with the reason why there is none."""
    seen = [name]
    while specs[seen[-1]].parent:
        parent = specs[seen[-1]].parent
        if parent not in specs:
            return (f"parent: there is no queue {parent} in this namespace that can be used",)
        if parent in seen:
            return (f"parent: {' is below '.join([*seen, parent])}, which is a cycle",)
        seen.append(parent)
    return specs[seen[-1]]


def _tree(root: str, queues: Mapping[str, QueueSpec], nodes: Sequence[Object]) -> Tree:
    top = queues[root]
    counted = node_slots.count(nodes, top.resource, top.of_slot, top.labels) if top.resource else Cluster(())
    if top.resource:
        top = replace(top, slots=counted.slots)
        queues = {**queues, root: top}
    return Tree(top, queues, Rules(top.quantum, top.ageing, queues, top.round), counted.nodes, counted.away)


def _nodes_fault(tree: Tree) -> str:
    if not tree.root.resource or tree.nodes:
        return ""
    which = ", ".join(f"{name}={value}" for name, value in sorted(tree.root.labels.items()))
    of = f" of those with {which}" if which else ""
    return f"resource: no node{of} that accepts pods is known to have {tree.root.of_slot} {tree.root.resource}"


def _policy_fault(tree: Tree) -> str:
    try:
        tree.make_policy()
    except SchedulerError as error:
        return f"policy: {error.message}; {error.hint}" if error.hint else f"policy: {error.message}"
    return ""
