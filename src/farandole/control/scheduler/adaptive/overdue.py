"""Jobs that have waited too long: they come first, even if slots are more valuable to other jobs.

A job is overdue if it has waited longer than `ageing` seconds, and longer than it has run. It must have slots until it
has run as long as it has waited: running jobs come first, so that none is stopped for another, then the jobs that have
waited longest. If jobs that cannot be suspended leave too few slots, no other job may start or grow on one type until
enough of its slots are free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from farandole.control.scheduler.adaptive.shares import Account
from farandole.control.scheduler.adaptive.solve import Choice
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.rules import Rules


class Reserved(NamedTuple):
    """The slots that are reserved for overdue jobs.

    Attributes:
        must: indices of the jobs that must have slots now.
        waiting: index of the first job for which slots have to become free; None: there is none.
        type: type of these slots.
    """

    must: frozenset[int]
    waiting: int | None = None
    type: str = ""

    def allows(self, choice: Choice, job: PolicyJob) -> bool:
        """Return whether a choice leaves the reserved slots free."""
        if choice.type != self.type or choice.job in self.must or choice.job == self.waiting:
            return True
        has = job.allocation
        return has is not None and has.type == choice.type and choice.slots <= has.slots


def reserve(
    jobs: Sequence[PolicyJob],
    choices: Sequence[Choice],
    free: Mapping[str, int],
    account: Account,
    now: float,
    rules: Rules,
) -> Reserved:
    """Return the slots that are reserved for overdue jobs.

    Args:
        jobs: all jobs, in the order of the choices' indices.
        choices: choices of all jobs.
        free: number of slots of each type, without slots of jobs that must not be suspended.
        account: use of limits and quotas by these jobs; nothing is reserved for a job that would break one.
        now: present time in seconds.
        rules: settings of the policy.
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


def _overdue(job: PolicyJob, now: float, rules: Rules) -> float:
    """Return the waiting time of a job in seconds if it is overdue, or 0."""
    ran = job.ran(now)
    waited = now - job.submitted - ran
    return waited if waited > max(rules.ageing, ran) else 0.0
