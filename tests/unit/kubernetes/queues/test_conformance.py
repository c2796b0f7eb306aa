"""One policy, three users of it: the operator decides as the simulator does, which the queue's daemon does too."""

from __future__ import annotations

import random
from typing import Any

import pytest
from played_queues import PlayedNamespace, queue

from farandole.kubernetes.queues.decide import decide, view_of
from farandole.kubernetes.queues.queue_spec import read_queues
from farandole.kubernetes.queues.queued_jobs import JobAndPods, queued_jobs
from farandole.queue.settings import QueueSettings
from farandole.scheduler.cluster import Cluster, Node
from farandole.scheduler.job import Decision
from farandole.scheduler.policies import make_policy
from farandole.scheduler.rules import Queue, Rules
from farandole.simulator.job_trace import TraceJob, Workload
from farandole.simulator.setup import Options, simulate

SLOTS, QUANTUM = 6, 40.0
POLICIES = ("fcfs", "easy", "conservative", "sjf", "srtf", "rr", "priority", "preempt", "fair", "edf", "adaptive")
RULES = Rules(quantum=QUANTUM, queues={"main": Queue("main"), "red": Queue("red", "main", quota=2, limit=4)})
QUEUES = (
    queue("main", slots=SLOTS, quantum=QUANTUM),
    queue("red", parent="main", quota=2, limit=4),
)

Told = list[tuple[float, dict[str, int]]]


def workload(seed: int) -> Workload:
    """Return jobs that come at whole seconds, as Kubernetes writes them, and end at others."""
    dice = random.Random(seed)
    jobs, at = [], 1_000_000.0
    for index in range(14):
        at += dice.choice((1.0, 3.0, 11.0, 40.0))
        seconds = dice.randrange(5, 120) + dice.choice((0.13, 0.29, 0.41))
        queue_ = dice.choice(("main", "red"))
        slots = dice.choice((1, 1, 2, 3, 4 if queue_ == "red" else 6))
        jobs.append(
            TraceJob(
                name=f"job-{index:02}",
                submitted=at,
                slots=slots,
                run_time=seconds,
                requested_time=seconds,
                priority=dice.randrange(3),
                queue=queue_,
                deadline=at + 4 * seconds,
            )
        )
    return Workload("w", tuple(jobs))


class Recording:
    """A policy whose decisions are recorded."""

    resizes = False

    def __init__(self, policy: str) -> None:
        self._policy = make_policy(policy, RULES)
        self.asked: list[tuple[float, Any, Decision]] = []

    def decide(self, cluster: Cluster, jobs: Any, now: float) -> Decision:
        decision = self._policy.decide(cluster, jobs, now)
        self.asked.append((now, tuple(jobs), decision))
        return decision


def simulated(policy: str, jobs: Workload) -> Recording:
    recording = Recording(policy)
    cluster = Cluster((Node("main", "slot", SLOTS),))
    simulate(cluster, jobs, {}, recording, Options(interval=0.0, restart=0.0, predictions="given"))
    return recording


def of_operator(policy: str, jobs: Workload) -> Told:
    """Let the operator's pure parts do the same, in a namespace in which everything happens at once."""
    queues = [{**each, "spec": dict(each["spec"])} for each in QUEUES]
    queues[0]["spec"]["policy"] = policy
    team = PlayedNamespace(*queues)
    coming = list(jobs.jobs)
    told: Told = []
    while coming or not all(each.is_over for each in team.jobs.values()):
        team.pass_to(max(team.now, min([team.next(), *[job.submitted for job in coming[:1]]])))
        while coming and coming[0].submitted <= team.now:
            job = coming.pop(0)
            assert job.run_time is not None and job.deadline is not None
            team.submit(
                job.name,
                work=job.run_time * job.slots,
                workers=job.slots,
                queue=job.queue,
                priority=job.priority,
                duration=job.requested_time,
                deadline=job.deadline - job.submitted,
                checkpoint="/c",
            )
        team.settle()
        assert team.admissions is not None
        told.append((team.now, _slots(team.admissions.standing["main"].decision)))
    return told


def _slots(decision: Decision) -> dict[str, int]:
    return {name: allocation.slots for name, allocation in decision.allocations.items()}


def news(told: Told) -> Told:
    """Return the last decision of each moment, where it says something new."""
    last: dict[float, dict[str, int]] = {}
    for now, slots in told:
        last[round(now, 4)] = slots
    found: Told = []
    for now, slots in sorted(last.items()):
        if slots and (not found or found[-1][1] != slots):
            found.append((now, slots))
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_the_operator_decides_as_the_simulator_does(policy: str) -> None:
    if policy == "adaptive":
        pytest.importorskip("scipy")
    jobs = workload(5)
    recording = simulated(policy, jobs)
    expected = news([(now, _slots(decision)) for now, _, decision in recording.asked])
    assert news(of_operator(policy, jobs)) == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_recorded_inputs_give_the_same_decisions_and_reasons_in_all_three(policy: str) -> None:
    if policy == "adaptive":
        pytest.importorskip("scipy")
    recording = simulated(policy, workload(3))
    texts = {"main": "weight=1", "red": "parent=main,quota=2,limit=4"}
    settings = QueueSettings(policy=policy, quantum=QUANTUM, queues=texts)
    settings.check()
    of_queue = make_policy(settings.policy, settings.rules())
    queues = [{**each, "spec": dict(each["spec"])} for each in QUEUES]
    queues[0]["spec"]["policy"] = policy
    tree = read_queues(queues).trees["main"]
    for now, views, decision in recording.asked:
        assert of_queue.decide(tree.cluster_of(SLOTS), views, now) == decision
        assert tree.make_policy().decide(tree.cluster_of(SLOTS), views, now) == decision


def test_the_operator_shows_policies_what_the_simulator_shows_them() -> None:
    jobs = workload(1)
    shown = {round(now, 4): {view.name: view for view in views} for now, views, _ in simulated("srtf", jobs).asked}
    team = PlayedNamespace(queue("main", slots=SLOTS, quantum=QUANTUM, policy="srtf"), QUEUES[1])
    coming, compared = list(jobs.jobs), 0
    while coming or not all(each.is_over for each in team.jobs.values()):
        team.pass_to(max(team.now, min([team.next(), *[job.submitted for job in coming[:1]]])))
        while coming and coming[0].submitted <= team.now:
            job = coming.pop(0)
            assert job.run_time is not None
            team.submit(
                job.name,
                work=job.run_time * job.slots,
                workers=job.slots,
                queue=job.queue,
                priority=job.priority,
                duration=job.requested_time,
                checkpoint="/c",
            )
        forest = read_queues(team.queues)
        known = queued_jobs(forest, [JobAndPods(each.job, each.pods) for each in team.jobs.values()])
        for job in known:
            theirs = shown.get(round(team.now, 4), {}).get(job.name)
            if theirs is None or job.over:
                continue
            mine = view_of(job, forest.trees["main"], 0)
            assert (mine.slots, mine.priority, mine.queue, mine.duration, mine.submitted) == (
                theirs.slots,
                theirs.priority,
                theirs.queue,
                theirs.duration,
                theirs.submitted,
            )
            assert mine.ran(team.now) == pytest.approx(theirs.ran(team.now), abs=1e-3)
            assert mine.served(team.now) == pytest.approx(theirs.served(team.now), abs=1e-3)
            compared += 1
        team.settle()
    assert compared > 30
    assert decide(read_queues(team.queues), [], team.now).of_job == {}
