"""The administrator's settings: time slices, ageing, and the tree of queues with weights, quotas and limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from farandole.control.scheduler.errors import SchedulerError

_SYNTAX = "the settings of a queue are parent=NAME,weight=N,quota=N,limit=N, and each may be omitted"


@dataclass(frozen=True)
class Queue:
    """A queue: its parent, its weight among its siblings, and the slots that its jobs may have together.

    Attributes:
        name: name of the queue.
        parent: name of the parent queue; "": a queue at the top.
        weight: weight among the siblings.
        quota: number of slots that the queue owns. Beyond them, its jobs borrow unused slots of others, and return
            them on demand. None: all slots are shared by weight.
        limit: largest number of slots that the queue may have; None: no limit.
    """

    name: str
    parent: str = ""
    weight: float = 1.0
    quota: int | None = None
    limit: int | None = None


@dataclass(frozen=True)
class Rules:
    """The constant settings of a policy."""

    quantum: float = 3600.0
    """Length of a time slice in seconds."""
    ageing: float = 3600.0
    """Seconds of waiting that raise the priority by one."""
    queues: Mapping[str, Queue] = field(default_factory=dict)
    """Queues by name; any other queue has no parent, a weight of 1 and no quota."""
    round: float = 60.0
    """Seconds between decisions of policies that decide periodically."""

    def queue(self, name: str) -> Queue:
        return self.queues.get(name) or Queue(name)


def parse_queues(texts: Sequence[str]) -> dict[str, Queue]:
    """Parse queues such as `vision:parent=lab,weight=2,quota=8,limit=16`.

    Raises:
        SchedulerError: a text is not a valid queue, a parent is missing, or a queue is its own ancestor.
    """
    queues = {}
    for text in texts:
        name, _, rest = text.partition(":")
        values: dict[str, str] = {}
        for pair in filter(None, rest.split(",")):
            key, equals, value = pair.partition("=")
            if not equals or key not in ("parent", "weight", "quota", "limit"):
                raise SchedulerError(f"queue {name}: {pair!r} is not a valid setting", _SYNTAX)
            values[key] = value
        if not name:
            raise SchedulerError(f"a queue has no name: {text!r}", _SYNTAX)
        queues[name] = _queue(name, values)
    for queue in queues.values():
        if queue.parent and queue.parent not in queues:
            raise SchedulerError(
                f"queue {queue.name}: its parent {queue.parent} is not defined",
                f"define the queue {queue.parent} as well",
            )
    for name in queues:
        if _is_below_itself(name, queues):
            raise SchedulerError(f"queue {name} is its own ancestor", "the topmost queue has no parent")
    return queues


def _is_below_itself(name: str, queues: Mapping[str, Queue]) -> bool:
    above = queues[name].parent
    for _ in queues:  # A longer path has a cycle.
        if above in ("", name):
            break
        above = queues[above].parent
    return above == name


def _queue(name: str, values: Mapping[str, str]) -> Queue:
    try:
        weight = float(values.get("weight", 1))
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise SchedulerError(f"queue {name}: weight={values['weight']} is not a number above 0", _SYNTAX)
    quota, limit = (_whole(name, key, values.get(key), least) for key, least in (("quota", 0), ("limit", 1)))
    return Queue(name, values.get("parent", ""), weight, quota, limit)


def _whole(name: str, key: str, text: str | None, least: int) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < least:
        raise SchedulerError(f"queue {name}: {key}={text} is not a whole number of at least {least}", _SYNTAX)
    return int(text)


def check_quotas(queues: Iterable[Queue], slots: int) -> None:
    """Check that no quota exceeds the number of all slots.

    Raises:
        SchedulerError: a quota exceeds it, so the queue could never have all slots that it owns.
    """
    for queue in queues:
        if queue.quota is not None and queue.quota > slots:
            raise SchedulerError(
                f"queue {queue.name}: its quota of {queue.quota} exceeds the {slots} slots of the cluster",
                f"use a quota of at most {slots}",
            )
