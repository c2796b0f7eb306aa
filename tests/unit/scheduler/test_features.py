"""The features of all policies: quotas, limits, priorities, deadlines and weights, with one situation for each.

Each situation has eight slots and rigid jobs. A policy that does not honour something decides by something else, so the
table says both: which policies do, and that the others do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from schedules import given, view

from farandole.control.scheduler.cluster import Allocation, parse_cluster
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.policies import POLICIES, make_policy
from farandole.control.scheduler.rules import Queue, Rules

EIGHT = parse_cluster("2x4")
NAMES = (*POLICIES, "priority+easy+elastic", "fair+elastic", "adaptive+strict")
SUSPENDS = {"srtf", "rr", "preempt", "fair", "edf", "fair+elastic", "adaptive", "adaptive+strict"}
ALL = set(NAMES)
NOW = 1000.0


@dataclass(frozen=True)
class Situation:
    """Jobs and queues, and the jobs that have slots exactly if a policy honours the feature."""

    jobs: Sequence[PolicyJob]
    queues: Sequence[Queue]
    has_slots: Callable[[set[str]], bool]
    honoured_by: set[str]


def many(name: str, count: int, submitted: float = 0.0, **more: object) -> list[PolicyJob]:
    """Return jobs with one slot each, which were submitted one after the other."""
    return [view(f"{name}-{index}", 1, submitted + index, duration=500.0, **more) for index in range(count)]


def running(jobs: Sequence[PolicyJob]) -> list[PolicyJob]:
    """Return jobs that have the slots of the two nodes, one after the other."""
    return [
        given(replace(job, largest_run=1), Allocation("slot", ((index // 4, 1),)), job.submitted)
        for index, job in enumerate(jobs)
    ]


def only(prefix: str) -> Callable[[set[str]], bool]:
    return lambda found: len(found) == 8 and all(name.startswith(prefix) for name in found)


LAB = [Queue("lab", quota=8), Queue("vision", "lab")]
NESTED = [Queue("lab", quota=8), Queue("vision", "lab", quota=6), Queue("speech", "lab")]
LATE = 500.0

SITUATIONS = {
    "a quota comes before queues without one": Situation(
        [*many("none", 8), *many("red", 8, LATE, queue="red")], [Queue("red", quota=8)], only("red"), ALL
    ),
    "a part of a quota is guaranteed too": Situation(
        [*many("none", 8), *many("red", 8, LATE, queue="red")],
        [Queue("red", quota=6)],
        lambda found: len(found) == 8 and sum(name.startswith("red") for name in found) >= 6,
        ALL,
    ),
    "a quota of the queue above": Situation(
        [*many("none", 8), *many("vision", 8, LATE, queue="vision")], LAB, only("vision"), ALL
    ),
    "a quota inside a quota": Situation(
        [*many("none", 8), *many("speech", 8, 100.0, queue="speech"), *many("vision", 8, LATE, queue="vision")],
        NESTED,
        lambda found: sum(name.startswith("vision") for name in found) >= 6 and "none-0" not in found,
        ALL,
    ),
    "what nobody with a quota wants is borrowed": Situation(
        [*many("none", 8), *many("red", 2, LATE, queue="red")],
        [Queue("red", quota=8)],
        lambda found: len(found) == 8 and {"red-0", "red-1"} <= found,
        ALL,
    ),
    "borrowed slots are taken back": Situation(
        [*running(many("none", 8)), *many("red", 8, LATE, queue="red")], [Queue("red", quota=8)], only("red"), SUSPENDS
    ),
    "a limit": Situation(
        [*many("red", 8, queue="red"), *many("none", 8, LATE)],
        [Queue("red", limit=3)],
        lambda found: len(found) == 8 and sum(name.startswith("red") for name in found) <= 3,
        ALL,
    ),
    "a limit of the queue above": Situation(
        [*many("vision", 8, queue="vision"), *many("none", 8, LATE)],
        [Queue("lab", limit=3), Queue("vision", "lab")],
        lambda found: len(found) == 8 and sum(name.startswith("vision") for name in found) <= 3,
        ALL,
    ),
    "jobs that are larger than their queue's limit hold nobody up": Situation(
        [
            view("large", 6, queue="red", duration=500.0),
            view("larger", 7, 1.0, queue="red", duration=500.0),
            *many("none", 8, LATE),
        ],
        [Queue("red", limit=3)],
        only("none"),
        ALL,
    ),
    "a job that can never run holds nobody up": Situation(
        [view("huge", 9, duration=500.0, priority=1), *many("none", 8, LATE)], [], only("none"), ALL
    ),
    "priorities": Situation(
        [*many("low", 8), *many("high", 8, LATE, priority=4)],
        [],
        only("high"),
        {"priority", "preempt", "priority+easy+elastic", "adaptive"},
    ),
    "a higher priority suspends": Situation(
        [*running(many("low", 8)), *many("high", 8, LATE, priority=9)],
        [],
        only("high"),
        {"preempt", "adaptive"},
    ),
    "deadlines": Situation(
        [*many("never", 8), *many("soon", 8, LATE, deadline=NOW + 600.0)], [], only("soon"), {"edf", "adaptive"}
    ),
    "weights": Situation(
        [*many("light", 8, queue="light"), *many("heavy", 8, LATE, queue="heavy")],
        [Queue("heavy", weight=3.0), Queue("light")],
        lambda found: sum(name.startswith("heavy") for name in found) >= 6,
        {"fair", "fair+elastic", "adaptive"},
    ),
}


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("feature", SITUATIONS)
def test_features(feature: str, policy: str) -> None:
    situation = SITUATIONS[feature]
    rules = Rules(quantum=2000.0, ageing=10_000.0, queues={queue.name: queue for queue in situation.queues})
    found = make_policy(policy, rules).decide(EIGHT, situation.jobs, NOW)
    assert situation.has_slots(set(found.allocations)) == (policy in situation.honoured_by), found.reasons


@pytest.mark.parametrize("policy", NAMES)
def test_job_that_cannot_be_suspended_keeps_its_slots(policy: str) -> None:
    jobs = [replace(job, preemptible=False) for job in running(many("none", 8))]
    comers = many("red", 8, LATE, queue="red", priority=9, deadline=NOW + 600.0)
    found = make_policy(policy, Rules(queues={"red": Queue("red", quota=8)})).decide(EIGHT, [*jobs, *comers], NOW)
    assert set(found.allocations) == {job.name for job in jobs}


@pytest.mark.parametrize("policy", ["equal", "fair+elastic", "priority+easy+elastic", "adaptive"])
def test_elastic_jobs_grow_within_quotas_first(policy: str) -> None:
    rules = Rules(queues={"red": Queue("red", quota=6)})
    none = view("none", 8, min_slots=1, max_slots=8, largest_run=8, duration=1e5)
    red = view("red", 8, LATE, min_slots=1, max_slots=8, queue="red", largest_run=8, duration=1e5)
    grown = given(none, Allocation("slot", ((0, 4), (1, 4))))
    for other in (none, grown, replace(grown, preemptible=False)):
        found = make_policy(policy, rules).decide(EIGHT, [other, red], NOW).allocations
        # Sizes of the adaptive policy are powers of two and whole nodes.
        assert found["red"].slots == (4 if policy == "adaptive" else 6) and found["none"].slots == 2
        alone = make_policy(policy, rules).decide(EIGHT, [other], NOW).allocations
        assert alone["none"].slots == 8, "what nobody wants is borrowed"
