"""One policy, two users of it: the queue decides as the simulator does, at the same moments, about the same jobs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from queue_world import ANN, FakeDaemon, World, hosts

from farandole.queue.settings import QueueSettings
from farandole.scheduler.cluster import Cluster, Node
from farandole.scheduler.job import Decision, JobView
from farandole.scheduler.policies import make_policy
from farandole.scheduler.policy import Policy
from farandole.simulator.job_trace import TraceJob, Workload
from farandole.simulator.setup import Options, simulate

HOSTS = "h1:2,h2:2,h3:2"
QUANTUM = 40.0
POLICIES = (
    "fcfs",
    "easy",
    "conservative",
    "sjf",
    "srtf",
    "rr",
    "priority",
    "preempt",
    "fair",
    "spread",
    "edf",
    "adaptive",
)


@dataclass
class Recording:
    """A policy that records what it is asked and what it says."""

    policy: Policy
    resizes: bool = False
    asked: list[tuple[float, tuple[JobView, ...], Decision]] = field(default_factory=list)

    def decide(self, cluster: Cluster, jobs: Sequence[JobView], now: float) -> Decision:
        decision = self.policy.decide(cluster, jobs, now)
        self.asked.append((now, tuple(sorted(jobs, key=lambda job: job.name)), decision))
        return decision


def workload(seed: int) -> Workload:
    dice = random.Random(seed)
    jobs, at = [], 1000.0
    for index in range(20):
        at += dice.choice((0.0, 3.0, 11.0, 40.0)) + dice.random()  # No two things at once, whose order is free.
        seconds = float(dice.randrange(5, 120))
        jobs.append(
            TraceJob(
                name=f"job-{index:02}",
                submitted=at,
                slots=dice.choice((1, 1, 2, 3, 6)),
                run_time=seconds,
                requested_time=seconds,
                priority=dice.randrange(3),
                user=ANN.owner.name,
                deadline=at + 4 * seconds,
            )
        )
    return Workload("w", tuple(jobs))


def simulated(policy: str, jobs: Workload, rules: Any) -> Recording:
    cluster = Cluster(tuple(Node(host.name, host.type, host.slots) for host in hosts(HOSTS)))
    recording = Recording(make_policy(policy, rules))
    simulate(cluster, jobs, {}, recording, Options(interval=0.0, restart=0.0, predictions="given"))
    return recording


def queued(policy: str, jobs: Workload, settings: QueueSettings, directory: Path) -> Recording:
    """Let the queue do the same, in a world in which everything happens at once."""
    daemon = FakeDaemon(directory, World(), hosts(HOSTS), settings)
    recording = Recording(make_policy(policy, settings.rules()))
    daemon.policy = recording
    coming = list(jobs.jobs)
    world = daemon.world
    while coming or not all(job.phase.is_over for job in daemon.state.jobs.values()):
        times = [world.next(), *([coming[0].submitted] if coming else [])]
        if daemon.review_at is not None and daemon.review_at > world.now:
            times.append(daemon.review_at)
        world.pass_to(max(world.now, min(times)))
        while coming and coming[0].submitted <= world.now:
            job = coming.pop(0)
            assert job.run_time is not None and job.deadline is not None
            daemon.submit(
                job.name,
                work=job.run_time * job.slots,
                workers=job.slots,
                priority=job.priority,
                duration=job.requested_time,
                deadline=job.deadline - job.submitted,
                checkpoint="/c",
            )
        daemon.turns()
    daemon.close()
    return recording


def granted(recording: Recording) -> list[tuple[float, dict[str, Any]]]:
    """Return the last decision of each moment, where it says something new."""
    at: dict[float, dict[str, Any]] = {}
    for now, _, decision in recording.asked:
        at[round(now, 6)] = {name: allocation.parts for name, allocation in decision.allocations.items()}
    told: list[tuple[float, dict[str, Any]]] = []
    for now, allocations in sorted(at.items()):
        if allocations and (not told or told[-1][1] != allocations):
            told.append((now, allocations))
    return told


@pytest.mark.parametrize("policy", POLICIES)
def test_the_queue_decides_as_the_simulator_does(policy: str, tmp_path: Path) -> None:
    for seed in range(3):
        directory = tmp_path / str(seed)
        directory.mkdir()
        settings = QueueSettings(policy=policy, quantum=QUANTUM)
        jobs = workload(seed)
        simulation, queue = simulated(policy, jobs, settings.rules()), queued(policy, jobs, settings, directory)
        assert granted(queue) == granted(simulation), f"seed {seed}"


def test_recorded_inputs_give_the_same_decisions_and_reasons() -> None:
    settings = QueueSettings(quantum=QUANTUM)
    for policy in POLICIES:
        recording = simulated(policy, workload(7), settings.rules())
        again = make_policy(policy, settings.rules())
        cluster = Cluster(tuple(Node(host.name, host.type, host.slots) for host in hosts(HOSTS)))
        for now, views, decision in recording.asked:
            assert again.decide(cluster, views, now) == decision


def test_the_queue_shows_policies_what_the_simulator_shows_them(tmp_path: Path) -> None:
    settings = QueueSettings(policy="srtf", quantum=QUANTUM)
    jobs = workload(1)
    simulation = simulated("srtf", jobs, settings.rules())
    queue = queued("srtf", jobs, settings, tmp_path)
    shown = {round(now, 6): views for now, views, _ in simulation.asked}
    compared = 0
    for now, views, _ in queue.asked:
        theirs = shown.pop(round(now, 6), None)  # The queue may be asked again at the same moment.
        if theirs is None or {view.name for view in views} != {view.name for view in theirs}:
            continue
        for mine, other in zip(views, theirs, strict=True):
            if (mine.allocation is None) == (other.allocation is None):
                assert comparable(mine, now) == comparable(other, now)
                compared += 1
    assert compared > 100


def comparable(view: JobView, now: float) -> Any:
    """Return what both know of a job; sums of times differ in their last digits."""
    sums = round(view.served(now), 3), round(view.ran(now), 3), round(view.remaining(now) or 0.0, 3)
    plain = replace(view, batch=None, served_before=0.0, ran_before=0.0, since=round(view.since, 3), largest_run=0)
    restarting = round(max(view.restarting_until - now, 0.0), 3) if view.allocation is not None else 0.0
    plain = replace(
        plain, started=None if view.started is None else round(view.started, 3), restarting_until=restarting
    )
    return sums, replace(plain, deadline=round(view.deadline or 0.0, 3))
