"""What an administrator sets: time slices, ageing, and the tree of queues with weights, quotas and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farandole.scheduler.errors import SchedulerError


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
                raise SchedulerError(f"--queue {text}: {pair!r}", "write NAME:parent=NAME,weight=N,quota=N,limit=N")
            values[key] = value
        queues[name] = _queue(name, values, text)
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


def _queue(name: str, values: Mapping[str, str], text: str) -> Queue:
    try:
        weight = float(values.get("weight", 1))
        quota, limit = (int(values[key]) if key in values else None for key in ("quota", "limit"))
    except ValueError as error:
        raise SchedulerError(f"--queue {text}: {error}") from None
    if not name or not 0 < weight < float("inf") or (quota or 0) < 0 or (limit is not None and limit < 1):
        raise SchedulerError(
            f"--queue {text}: weights and limits are above 0, quotas from 0 on, and a queue has a name"
        )
    return Queue(name, values.get("parent", ""), weight, quota, limit)
