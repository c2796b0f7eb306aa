"""What an administrator sets: time slices, ageing, and the tree of queues with weights, quotas and limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from farandole.control.scheduler.errors import SchedulerError

_SYNTAX = "write NAME:parent=NAME,weight=N,quota=N,limit=N"


@dataclass(frozen=True)
class Queue:
    """A queue: its parent, its weight among its siblings, and how many slots its jobs may have together.

    Attributes:
        parent: "" for a queue at the top.
        quota: slots that are its own; jobs beyond them borrow what others leave, and give it back when they want it.
            None: all is shared by weight.
        limit: slots that it never has more of; None: no limit.
    """

    name: str
    parent: str = ""
    weight: float = 1.0
    quota: int | None = None
    limit: int | None = None


@dataclass(frozen=True)
class Rules:
    """What a policy is told once."""

    quantum: float = 3600.0
    """Seconds of a time slice."""
    ageing: float = 3600.0
    """Seconds of waiting that are worth one step of priority."""
    queues: Mapping[str, Queue] = field(default_factory=dict)
    """By name; a queue that is not in here has no parent, a weight of 1 and no quota."""
    round: float = 60.0
    """Seconds between decisions of policies that decide even when nothing happens."""

    def queue(self, name: str) -> Queue:
        return self.queues.get(name) or Queue(name)


def parse_queues(texts: Sequence[str]) -> dict[str, Queue]:
    """Read queues such as `vision:parent=lab,weight=2,quota=8,limit=16`.

    Raises:
        SchedulerError: a text says something else, a parent is missing, or a queue is below itself.
    """
    queues = {}
    for text in texts:
        name, _, rest = text.partition(":")
        values: dict[str, str] = {}
        for pair in filter(None, rest.split(",")):
            key, equals, value = pair.partition("=")
            if not equals or key not in ("parent", "weight", "quota", "limit"):
                raise SchedulerError(f"queue {name}: {pair!r} is not understood", _SYNTAX)
            values[key] = value
        if not name:
            raise SchedulerError(f"a queue has no name: {text!r}", _SYNTAX)
        queues[name] = _queue(name, values)
    for queue in queues.values():
        if queue.parent and queue.parent not in queues:
            raise SchedulerError(
                f"queue {queue.name}: there is no queue {queue.parent}", "name it with another --queue"
            )
    for name in queues:
        if _is_below_itself(name, queues):
            raise SchedulerError(f"queue {name} is below itself", "parents lead up to a queue that has none")
    return queues


def _is_below_itself(name: str, queues: Mapping[str, Queue]) -> bool:
    above = queues[name].parent
    for _ in queues:  # A longer way up goes round.
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
        raise SchedulerError(f"queue {name}: {key}={text} is not a whole number from {least} on", _SYNTAX)
    return int(text)


def check_quotas(queues: Iterable[Queue], slots: int) -> None:
    """Check that no quota is more than all slots that there are.

    Raises:
        SchedulerError: one is: the queue could never have what is its own.
    """
    for queue in queues:
        if queue.quota is not None and queue.quota > slots:
            raise SchedulerError(
                f"queue {queue.name}: its quota of {queue.quota} is more than the {slots} slots that there are",
                f"a quota is at most {slots} here",
            )
