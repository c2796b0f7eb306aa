"""One policy, three users of it: the operator decides as the simulator does, which the queue's daemon does too."""

from __future__ import annotations

import random

import pytest
from played_queues import PlayedNamespace, node, queue
from policy_conformance import POLICIES, Told, as_submitted, news, simulated

from farandole.control.kubernetes.queues.decide import decide, view_of
from farandole.control.kubernetes.queues.queue_spec import read_queues
from farandole.control.kubernetes.queues.queued_jobs import JobAndPods, queued_jobs
from farandole.control.queue.settings import QueueSettings
from farandole.control.scheduler.cluster import Cluster, Node
from farandole.control.scheduler.job import Decision
from farandole.control.scheduler.policies import make_policy
from farandole.control.scheduler.rules import Queue, Rules
from farandole.control.simulator.job_trace import TraceJob, Workload

SLOTS, QUANTUM = 6, 40.0
RULES = Rules(quantum=QUANTUM, queues={"main": Queue("main"), "red": Queue("red", "main", quota=2, limit=4)})
QUEUES = (
    queue("main", slots=SLOTS, quantum=QUANTUM),
    queue("red", parent="main", quota=2, limit=4),
)

CLUSTER = Cluster((Node("main", "slot", SLOTS),))


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


def pass_on(team: PlayedNamespace, coming: list[TraceJob]) -> None:
    """Let time pass until something happens, and submit the jobs that come then."""
    team.pass_to(max(team.now, min([team.next(), *[job.submitted for job in coming[:1]]])))
    while coming and coming[0].submitted <= team.now:
        job = coming.pop(0)
        team.submit(job.name, **as_submitted(job))


def of_operator(policy: str, jobs: Workload, nodes: tuple[int, ...] = ()) -> Told:
    """Let the operator's pure parts do the same, in a namespace in which everything happens at once."""
    queues = [{**each, "spec": dict(each["spec"])} for each in QUEUES]
    queues[0]["spec"]["policy"] = policy
    if nodes:
        del queues[0]["spec"]["slots"]
        queues[0]["spec"]["resource"] = "nvidia.com/gpu"
    team = PlayedNamespace(*queues)
    team.nodes = [node(f"node-{number}", gpu=str(slots)) for number, slots in enumerate(nodes)]
    coming = list(jobs.jobs)
    told: Told = []
    while coming or not all(each.is_over for each in team.jobs.values()):
        pass_on(team, coming)
        team.settle()
        assert team.admissions is not None
        told.append((team.now, _slots(team.admissions.standing["main"].decision)))
    return told


def _slots(decision: Decision) -> dict[str, int]:
    return {name: allocation.slots for name, allocation in decision.allocations.items()}


@pytest.mark.parametrize("policy", POLICIES)
def test_operator_decides_like_simulator(policy: str) -> None:
    if policy == "adaptive":
        pytest.importorskip("scipy")
    jobs = workload(5)
    recording = simulated(policy, CLUSTER, jobs, RULES)
    expected = news([(now, _slots(decision)) for now, _, decision in recording.asked], digits=4)
    assert news(of_operator(policy, jobs), digits=4) == expected


@pytest.mark.parametrize("policy", ["easy", "srtf", "preempt", "fair"])
def test_operator_decides_like_simulator_with_nodes(policy: str) -> None:
    jobs, nodes = workload(7), (2, 4)
    cluster = Cluster(tuple(Node(f"node-{number}", "slot", slots) for number, slots in enumerate(nodes)))
    recording = simulated(policy, cluster, jobs, RULES)
    expected = news([(now, _slots(decision)) for now, _, decision in recording.asked], digits=4)
    assert news(of_operator(policy, jobs, nodes), digits=4) == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_recorded_inputs_give_same_decisions_in_all_three_users(policy: str) -> None:
    if policy == "adaptive":
        pytest.importorskip("scipy")
    recording = simulated(policy, CLUSTER, workload(3), RULES)
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


def test_operator_and_simulator_give_policies_same_view() -> None:
    jobs = workload(1)
    shown = {
        round(now, 4): {view.name: view for view in views}
        for now, views, _ in simulated("srtf", CLUSTER, jobs, RULES).asked
    }
    team = PlayedNamespace(queue("main", slots=SLOTS, quantum=QUANTUM, policy="srtf"), QUEUES[1])
    coming, compared = list(jobs.jobs), 0
    while coming or not all(each.is_over for each in team.jobs.values()):
        pass_on(team, coming)
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
