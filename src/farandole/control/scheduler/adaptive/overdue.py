"""Jobs that have waited too long: they come first, whatever is worth more.

A job is overdue if it has waited longer than `ageing` seconds, and longer than it has run. It then must have slots,
until it has run as long as it has waited: first the jobs that run, so that none is stopped for another, then those that
have waited longest. Where jobs that cannot be suspended leave too few slots, no other job may start or grow on one type
until enough of its slots are free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from farandole.control.scheduler.adaptive.shares import Account
from farandole.control.scheduler.adaptive.solve import Choice
from farandole.control.scheduler.job import JobView
from farandole.control.scheduler.rules import Rules


class Reserved(NamedTuple):
    """What is set aside for overdue jobs.

    Attributes:
        must: the indices of the jobs that must have slots now.
        waiting: the index of the first job for which slots have to become free; None: there is none.
        type: on which type it gets them.
    """

    must: frozenset[int]
    waiting: int | None = None
    type: str = ""

    def allows(self, choice: Choice, job: JobView) -> bool:
        """Return whether a job may have a choice beside what is set aside."""
        if choice.type != self.type or choice.job in self.must or choice.job == self.waiting:
            return True
        has = job.allocation
        return has is not None and has.type == choice.type and choice.slots <= has.slots


def reserve(
    jobs: Sequence[JobView],
    choices: Sequence[Choice],
    free: Mapping[str, int],
    account: Account,
    now: float,
    rules: Rules,
) -> Reserved:
    """Return what is set aside.

    Args:
        jobs: all jobs, in the order of the choices' indices.
        free: the slots of each type that no job holds which must not be suspended.
        account: what those jobs use of limits and quotas; nothing is set aside for a job that would break one.
    """
    late = {index: waited for index, job in enumerate(jobs) if (waited := _overdue(job, now, rules)) > 0}
    if not late:
        return Reserved(frozenset())
    least: dict[int, dict[str, int]] = {index: {} for index in late}
    for choice in choices:
        if choice.job in late:
            sizes = least[choice.job]
            sizes[choice.type] = min(choice.slots, sizes.get(choice.type, choice.slots))
    left, must = dict(free), set[int]()
    for index in sorted(late, key=lambda index: (jobs[index].allocation is None, -late[index], index)):
        sizes = least[index]
        if (jobs[index].allocation is not None and not jobs[index].preemptible) or not sizes:
            continue
        account.add(index, min(sizes.values()))
        if not account.holds:
            account.add(index, -min(sizes.values()))
            continue
        fits = [type_ for type_, slots in sizes.items() if slots <= left[type_]]
        if not fits:
            return Reserved(frozenset(must), index, max(sizes, key=lambda type_: left[type_] - sizes[type_]))
        best = max(fits, key=lambda type_: left[type_] - sizes[type_])
        left[best] -= sizes[best]
        must.add(index)
    return Reserved(frozenset(must))


def _overdue(job: JobView, now: float, rules: Rules) -> float:
    """Return the seconds for which a job has waited if that is too long, or 0."""
    ran = job.ran(now)
    waited = now - job.submitted - ran
    return waited if waited > max(rules.ageing, ran) else 0.0
