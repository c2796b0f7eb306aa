"""Limits and quotas of queues, as rows of the solver's program.

`used(Q)` is the number of slots of the jobs of a queue and its descendants. A limit is a row,

    used(Q) <= limit(Q)

A quota is the number of slots that a queue owns; slots beyond it are borrowed:

    used(Q) - borrowed(Q) <= quota(Q)                borrowed(Q) >= 0

Slots that no owner wants may be borrowed, and used by jobs without a quota. An owner wants the slots that would be best
for its jobs, up to its quota, so it gets lent slots back as soon as it wants them:

    sum of borrowed(Q) + used by jobs without a quota <= slots - sum of wanted(Q)

This is the row for all slots, over the outermost queues with quotas. Within such a queue P, the same row shares the
slots of P among its descendants with quotas: `quota(P) + borrowed(P)` takes the place of all slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.room import lineage
from farandole.control.scheduler.rules import Rules


class Row(NamedTuple):
    """A constraint: the slots of some jobs, plus borrowed slots times their factors, are at most `upper`."""

    jobs: frozenset[int]
    """Indices of the jobs."""
    borrowed: Mapping[str, float]
    """Factors of borrowed slots, by queue."""
    upper: float
    defines: str = ""
    """The queue whose borrowed slots are defined by this row; "": none."""


@dataclass(frozen=True)
class Claim:
    """A job's claim on slots, which is an input of the program.

    Attributes:
        wanted: number of slots that would be best for it, alone in the cluster.
        least: minimum number of slots that it keeps.
        fixed: whether it keeps exactly these slots, and is not part of the program.
    """

    wanted: int
    least: int = 0
    fixed: bool = False


def rows_of(rules: Rules, jobs: Sequence[PolicyJob], claims: Sequence[Claim], slots: int) -> list[Row]:
    """Return the rows for jobs with their claims, which are in the same order; none without limits and quotas."""
    if all(queue.limit is None and queue.quota is None for queue in rules.queues.values()):
        return []
    return list(_Rows(rules, jobs, claims).all(slots))


class _Rows:
    def __init__(self, rules: Rules, jobs: Sequence[PolicyJob], claims: Sequence[Claim]) -> None:
        self._rules = rules
        self._claims = claims
        self._members: dict[str, list[int]] = {}
        """Jobs of each queue and its descendants."""
        self._quotas: dict[str, list[int]] = {"": []}
        """Jobs by their closest queue with a quota; "": jobs without one."""
        self._outer: dict[str, str] = {}
        """The closest ancestor with a quota, for each queue with a quota and jobs."""
        for index, job in enumerate(jobs):
            above = list(lineage(job.queue, rules))
            for name in above:
                self._members.setdefault(name, []).append(index)
            owners = [name for name in above if rules.queue(name).quota is not None]
            self._quotas.setdefault(owners[0] if owners else "", []).append(index)
            self._outer |= {name: (*owners, "")[at + 1] for at, name in enumerate(owners)}

    def all(self, slots: int) -> Iterator[Row]:
        for name, members in self._members.items():
            limit = self._rules.queue(name).limit
            if limit is not None:
                yield self._row(members, {}, limit)
        for name in self._outer:
            yield self._row(self._members[name], {name: -1.0}, self._quota(name), defines=name)
        for name in ["", *self._outer]:
            inner = [queue for queue, outer in self._outer.items() if outer == name]
            if not inner:
                continue
            borrowed = dict.fromkeys(inner, 1.0)
            if name:
                borrowed[name] = -1.0
            whole = self._quota(name) if name else slots
            yield self._row(self._quotas.get(name, []), borrowed, max(0, whole - sum(map(self._wanted, inner))))

    def _quota(self, name: str) -> int:
        return self._rules.queue(name).quota or 0

    def _wanted(self, name: str) -> int:
        return min(self._quota(name), sum(self._claims[index].wanted for index in self._members[name]))

    def _row(self, members: Sequence[int], borrowed: Mapping[str, float], upper: float, defines: str = "") -> Row:
        """Return a row without the jobs with fixed slots. Its bound is never below the slots that the others keep."""
        fixed = sum(self._claims[index].least for index in members if self._claims[index].fixed)
        free = [index for index in members if not self._claims[index].fixed]
        least = sum(self._claims[index].least for index in free)
        upper = upper - fixed if defines else max(upper - fixed, least)
        return Row(frozenset(free), borrowed, float(upper), defines)


class Account:
    """The use of each row while choices are made one by one."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._used = [0.0] * len(rows)
        self._of_job: dict[int, list[int]] = {}
        for number, row in enumerate(rows):
            for job in row.jobs:
                self._of_job.setdefault(job, []).append(number)

    def add(self, job: int, slots: int) -> None:
        for number in self._of_job.get(job, ()):
            self._used[number] += slots

    @property
    def holds(self) -> bool:
        """Whether all rows hold, with as few borrowed slots as possible."""
        borrowed = {
            row.defines: max(0.0, used - row.upper)
            for row, used in zip(self._rows, self._used, strict=True)
            if row.defines
        }
        return all(
            row.defines or used + sum(borrowed[name] * factor for name, factor in row.borrowed.items()) <= row.upper
            for row, used in zip(self._rows, self._used, strict=True)
        )


def why_waits(job: PolicyJob, used: Mapping[str, int], rules: Rules) -> str:
    """Return the limit or quota that blocks a job, in words; "": none.

    Args:
        job: the waiting job.
        used: number of slots of each queue and its descendants.
        rules: queues with their limits and quotas.
    """
    for name in lineage(job.queue, rules):
        queue, has = rules.queue(name), used.get(name, 0)
        if queue.limit is not None and has + job.min_slots > queue.limit:
            return f"queue {name} has {has} slots, and its limit is {queue.limit}"
        if queue.quota is not None and has + job.min_slots > queue.quota:
            return f"queue {name} has {has} slots, its quota is {queue.quota}, and no other slots can be borrowed"
    return ""


def borrows(queue: str, used: Mapping[str, int], rules: Rules) -> str:
    """Return the slots that a queue or one of its ancestors borrows, in words; "": none."""
    for name in lineage(queue, rules):
        quota = rules.queue(name).quota
        if quota is not None and used.get(name, 0) > quota:
            return f"queue {name} borrows {used[name] - quota} slots beyond its quota of {quota}"
    return ""


def used_by(jobs: Sequence[tuple[PolicyJob, int]], rules: Rules) -> dict[str, int]:
    """Return the number of slots of each queue and its descendants."""
    used: dict[str, int] = {}
    for job, slots in jobs:
        for name in lineage(job.queue, rules):
            used[name] = used.get(name, 0) + slots
    return used
