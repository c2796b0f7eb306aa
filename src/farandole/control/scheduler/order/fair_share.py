"""Fair share: the queue, and in it the user, whose share is the smallest comes next.

Progressive filling of dominant resource fairness (Ghodsi et al., NSDI '11): jobs are granted one after the other, each
time to the claimant with the smallest share divided by its weight. Slots are the one resource that jobs compete for
here, so that the dominant share is that of all slots. Queues form a tree, which is filled level by level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import JobView
from farandole.control.scheduler.rules import Rules


def rank(cluster: Cluster, jobs: Sequence[JobView], now: float, rules: Rules) -> Sequence[JobView]:
    """Return jobs in the order in which progressive filling grants them."""
    members: dict[str, dict[str, list[JobView]]] = {}
    for job in jobs:
        members.setdefault(job.queue, {}).setdefault(job.user, []).append(job)
    # Within a user, jobs that run come first: a fair share is no reason to suspend one for another of the same user.
    lists = {
        queue: _merge([(1.0, sorted(of_user, key=lambda job: job.allocation is None)) for of_user in users.values()])
        for queue, users in members.items()
    }
    return _fill_below("", lists, rules, frozenset())


def _fill_below(parent: str, lists: Mapping[str, list[JobView]], rules: Rules, above: frozenset[str]) -> list[JobView]:
    """Return the jobs of all queues below one, merged by share."""
    known = dict.fromkeys([*rules.queues, *lists])
    children = [name for name in known if rules.queue(name).parent == parent and name not in above]
    merged = [
        (
            rules.queue(name).weight,
            _merge([(1.0, lists.get(name, [])), (1.0, _fill_below(name, lists, rules, above | {name}))]),
        )
        for name in children
    ]
    return _merge(merged)


def _merge(claimants: Iterable[tuple[float, list[JobView]]]) -> list[JobView]:
    """Merge lists of jobs: each time, the list whose granted slots divided by its weight are the fewest goes on."""
    keyed: list[tuple[float, float, str, JobView]] = []
    for weight, jobs in claimants:
        granted = 0
        for job in jobs:
            keyed.append((granted / weight, job.submitted, job.name, job))
            granted += job.slots
    return [job for *_, job in sorted(keyed, key=lambda entry: entry[:3])]
