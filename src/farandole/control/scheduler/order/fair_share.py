"""Fair share: the queue with the smallest share comes next, and in it the user with the smallest share.

Progressive filling of dominant resource fairness (Ghodsi et al., NSDI '11): jobs are granted one by one, each time to
the claimant with the smallest share divided by its weight. Slots are the only resource that jobs compete for here, so
the dominant share is the share of all slots. Queues form a tree, which is filled level by level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.rules import Rules


def rank(cluster: Cluster, jobs: Sequence[PolicyJob], now: float, rules: Rules) -> Sequence[PolicyJob]:
    """Return jobs in the order in which progressive filling grants them."""
    members: dict[str, dict[str, list[PolicyJob]]] = {}
    for job in jobs:
        members.setdefault(job.queue, {}).setdefault(job.user, []).append(job)
    # A user's running jobs come first: fair share must not suspend a job for another one of the same user.
    lists = {
        queue: _merge([(1.0, sorted(of_user, key=lambda job: job.allocation is None)) for of_user in users.values()])
        for queue, users in members.items()
    }
    return _fill_below("", lists, rules, frozenset())


def _fill_below(
    parent: str, lists: Mapping[str, list[PolicyJob]], rules: Rules, above: frozenset[str]
) -> list[PolicyJob]:
    """Return the jobs of all descendants of a queue, merged by share."""
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


def _merge(claimants: Iterable[tuple[float, list[PolicyJob]]]) -> list[PolicyJob]:
    """Merge lists of jobs: the next job is from the list with the fewest granted slots divided by its weight."""
    keyed: list[tuple[float, float, str, PolicyJob]] = []
    for weight, jobs in claimants:
        granted = 0
        for job in jobs:
            keyed.append((granted / weight, job.submitted, job.name, job))
            granted += job.slots
    return [job for *_, job in sorted(keyed, key=lambda entry: entry[:3])]
