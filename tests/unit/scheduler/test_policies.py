"""What each policy decides in a situation that shows what it is for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from schedules import given, view

from farandole.control.scheduler.cluster import Allocation, Cluster, Node, parse_cluster
from farandole.control.scheduler.errors import ClusterError, SchedulerError, UnknownPolicyError
from farandole.control.scheduler.job import Decision, PolicyJob
from farandole.control.scheduler.policies import POLICIES, describe, make_policy
from farandole.control.scheduler.rules import Queue, Rules

EIGHT = parse_cluster("2x4")


def running(job: PolicyJob, *parts: tuple[int, int], since: float = 0.0) -> PolicyJob:
    return given(job, Allocation("slot", parts), since)


def decide(policy: str, jobs: Sequence[PolicyJob], now: float = 100.0, rules: Rules | None = None) -> Decision:
    return make_policy(policy, rules).decide(EIGHT, jobs, now)


def test_fcfs_blocks_jobs_behind_the_first_that_does_not_fit() -> None:
    jobs = [view("a", 6), view("b", 4, 1.0), view("c", 1, 2.0)]
    decision = decide("fcfs", jobs)
    assert set(decision.allocations) == {"a"}
    assert decision.reasons["b"] == "waits: 2 of 8 slots are free, it needs 4"
    assert decision.reasons["c"] == "waits behind b: 2 of 8 slots are free"


def test_greedy_skips_jobs_that_do_not_fit() -> None:
    jobs = [view("a", 6), view("b", 4, 1.0), view("c", 1, 2.0)]
    assert set(decide("fcfs+greedy", jobs).allocations) == {"a", "c"}


def test_sjf_ranks_unknown_durations_last() -> None:
    jobs = [view("long", 8, duration=90.0), view("nobody-knows", 8), view("short", 8, 5.0, duration=10.0)]
    assert set(decide("sjf", jobs).allocations) == {"short"}


def test_srtf_suspends_job_with_longer_remaining_time() -> None:
    had_long = running(view("long", 8, duration=1000.0), (0, 4), (1, 4))
    short = view("short", 2, 90.0, duration=100.0)
    assert set(decide("srtf", [had_long, short]).allocations) == {"short"}
    nearly_done = running(view("long", 8, duration=150.0), (0, 4), (1, 4))
    assert set(decide("srtf", [nearly_done, short]).allocations) == {"long"}


def test_round_robin_changes_after_a_time_slice() -> None:
    jobs = [running(view("a", 8), (0, 4), (1, 4)), view("b", 8, 10.0)]
    rules = Rules(quantum=60.0)
    early = decide("rr", jobs, 59.0, rules)
    assert set(early.allocations) == {"a"} and early.review_at == 60.0
    assert set(decide("rr", jobs, 60.0, rules).allocations) == {"b"}
    assert decide("rr", jobs[:1], 60.0, rules).review_at is None


def test_priority_and_ageing() -> None:
    low, high = view("low", 8, 0.0), view("high", 8, 5000.0, priority=1)
    assert set(decide("priority", [low, high], 6000.0, Rules(ageing=10_000.0)).allocations) == {"high"}
    assert set(decide("priority", [low, high], 6000.0, Rules(ageing=4000.0)).allocations) == {"low"}


def test_only_preemptive_priority_suspends() -> None:
    low, high = running(view("low", 8), (0, 4), (1, 4)), view("high", 8, 5.0, priority=1)
    assert set(decide("priority", [low, high]).allocations) == {"low"}
    assert set(decide("preempt", [low, high]).allocations) == {"high"}
    kept = replace(low, preemptible=False)
    assert set(decide("preempt", [kept, high]).allocations) == {"low"}


def test_earliest_deadline_first() -> None:
    jobs = [view("never", 8), view("late", 8, deadline=900.0), view("soon", 8, 9.0, deadline=200.0)]
    assert set(decide("edf", jobs).allocations) == {"soon"}


def test_easy_backfills_jobs_that_do_not_delay_the_head() -> None:
    jobs = [
        running(view("a", 6, duration=200.0), (0, 4), (1, 2)),
        view("head", 8, 1.0, duration=50.0),
        view("too-long", 2, 2.0, duration=101.0),
        view("fits", 2, 3.0, duration=100.0),
    ]
    decision = decide("easy", jobs)
    assert set(decision.allocations) == {"a", "fits"}
    assert decision.reasons["head"].endswith("starts in about 2 min")
    assert decision.reasons["too-long"] == "waits: it would delay head, which comes first"


def test_conservative_keeps_every_reservation() -> None:
    jobs = [
        running(view("a", 6, duration=200.0), (0, 4), (1, 2)),
        view("first", 6, 1.0, duration=50.0),
        view("second", 8, 2.0, duration=50.0),
        view("third", 2, 3.0, duration=151.0),
    ]
    # `third` would not delay the first job that waits, which leaves 2 slots, but it would delay the second.
    assert set(decide("easy", jobs).allocations) == {"a", "third"}
    assert set(decide("conservative", jobs).allocations) == {"a"}
    short = [*jobs[:3], replace(jobs[3], duration=150.0)]
    assert set(decide("conservative", short).allocations) == {"a", "third"}


def test_fair_share_prefers_user_with_smallest_share() -> None:
    jobs = [view(f"ann-{index}", 2, float(index), user="ann") for index in range(4)]
    jobs.append(view("bob", 4, 50.0, user="bob"))
    assert set(decide("fair", jobs).allocations) == {"ann-0", "ann-1", "bob"}


def test_queues_borrow_and_give_back() -> None:
    rules = Rules(queues={"red": Queue("red", quota=4), "blue": Queue("blue", quota=4)})
    greedy = [running(view(f"red-{index}", 2, queue="red"), (index // 2, 2)) for index in range(4)]
    assert len(decide("fair", greedy, rules=rules).allocations) == 4
    blue = view("blue-0", 4, 50.0, queue="blue")
    decision = decide("fair", [*greedy, blue], rules=rules)
    assert set(decision.allocations) == {"red-0", "red-1", "blue-0"}


def test_weights_and_levels_of_queues() -> None:
    rules = Rules(queues={"lab": Queue("lab", weight=3), "vision": Queue("vision", "lab"), "guests": Queue("guests")})
    jobs = [view(f"{queue}-{index}", 1, queue=queue) for queue in ("vision", "guests") for index in range(8)]
    allocated = decide("fair", jobs, rules=rules).allocations
    assert sum(name.startswith("vision") for name in allocated) == 6


def test_a_queue_has_a_limit() -> None:
    rules = Rules(queues={"red": Queue("red", limit=2)})
    decision = decide("fcfs+greedy", [view("a", 2, queue="red"), view("b", 1, queue="red"), view("c", 4)], rules=rules)
    assert set(decision.allocations) == {"a", "c"}
    assert decision.reasons["b"] == "waits: queue red has reached its limit"


@pytest.mark.parametrize(
    ("placement", "shapes"), [("pack", [(3,), (1,)]), ("spread", [(2, 1), (1,)]), ("least-loaded", [(3,), (1,)])]
)
def test_placements(placement: str, shapes: list[tuple[int, ...]]) -> None:
    decision = decide(f"fcfs+{placement}", [view("a", 3), view("b", 1, 1.0)])
    assert [decision.allocations[name].shape for name in "ab"] == shapes
    same_node = decision.allocations["a"].parts[0][0] == decision.allocations["b"].parts[0][0]
    assert same_node == (placement == "pack")


def test_elastic_jobs_share_equally_and_give_back() -> None:
    jobs = [view(f"job-{index}", 8, float(index), min_slots=1) for index in range(3)]
    decision = decide("equal", jobs[:1])
    assert decision.allocations["job-0"].slots == 8
    grown = replace(jobs[0], allocation=decision.allocations["job-0"])
    allocations = decide("equal", [grown, *jobs[1:]]).allocations
    assert sorted(allocation.slots for allocation in allocations.values()) == [2, 3, 3]


def test_job_that_keeps_its_size_keeps_its_nodes() -> None:
    had = running(view("a", 2), (1, 2))
    assert decide("srtf", [had, view("b", 4, 5.0)]).allocations["a"] == had.allocation


def test_job_that_can_never_start_gets_reason() -> None:
    assert decide("easy", [view("huge", 9)]).reasons["huge"].startswith("can never start: it needs 9 slots")


@pytest.mark.parametrize("policy", ["easy", "adaptive"])
def test_job_waits_for_nodes_that_are_away_if_it_has_room_only_with_them(policy: str) -> None:
    away = (Node("other-0", "other", 1), Node("slot-2", "slot", 2), Node("slot-1", "slot", 3))
    cluster = Cluster((Node("slot-0", "slot", 4), Node("slot-1", "slot", 1)), away)
    decision = make_policy(policy).decide(cluster, [view("large", 10), view("huge", 11)], 100.0)
    short = "slots of one type, and no type has more than"
    assert decision.reasons == {
        "large": f"waits for slot-2, slot-1, which cannot take work now: it needs 10 {short} 5 now",
        "huge": f"can never start: it needs 11 {short} 10",
    }


@pytest.mark.parametrize("name", [name for name, row in POLICIES.items() if row.parts])
def test_the_order_of_the_jobs_does_not_matter(name: str) -> None:
    jobs = [view(f"job-{index}", 1 + index % 3, float(index % 4), duration=100.0 - index) for index in range(12)]
    jobs[2] = running(jobs[2], (0, 3))
    policy = make_policy(name)
    assert policy.decide(EIGHT, jobs, 50.0) == policy.decide(EIGHT, jobs[::-1], 50.0)


def test_policy_whose_package_is_missing_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "farandole.control.scheduler.adaptive.policy", None)
    with pytest.raises(SchedulerError, match=r"policy adaptive needs .*, which is not installed.*pip install"):
        make_policy("adaptive")


def test_unknown_policies_and_clusters() -> None:
    with pytest.raises(UnknownPolicyError, match=r"there is no policy fcsf.*did you mean fcfs"):
        make_policy("fcsf")
    with pytest.raises(UnknownPolicyError, match="both easy and strict"):
        make_policy("fcfs+easy+strict")
    with pytest.raises(UnknownPolicyError, match="policy adaptive\\+easy: easy is unknown"):
        make_policy("adaptive+easy")
    for text in ("", "a:2", "0x4", "a:1x1,a:2x2", "a:2x4;b:1x1", "99999999999x4"):
        with pytest.raises(ClusterError):
            parse_cluster(text)
    assert parse_cluster("aws:6x4,dgx-ext:2x8").slots_of == {"aws": 24, "dgx-ext": 16}


def test_every_policy_and_part_has_a_description() -> None:
    rows = describe()
    assert len(rows) == len(dict(rows)) and all(sentence for _, sentence in rows)
