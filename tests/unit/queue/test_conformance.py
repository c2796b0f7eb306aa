"""One policy, two users of it: the queue decides as the simulator does, at the same moments, about the same jobs."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from policy_conformance import POLICIES as CONFORMING
from policy_conformance import Recording, Told, as_submitted, news, simulated
from queue_world import ANN, FakeDaemon, World, hosts

from farandole.control.queue.settings import QueueSettings
from farandole.control.scheduler.cluster import Cluster, Node
from farandole.control.scheduler.job import PolicyJob
from farandole.control.scheduler.policies import make_policy
from farandole.control.simulator.job_trace import TraceJob, Workload

HOSTS = "h1:2,h2:2,h3:2"
QUANTUM = 40.0
POLICIES = (*CONFORMING, "spread")


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


def cluster() -> Cluster:
    return Cluster(tuple(Node(host.name, host.type, host.slots) for host in hosts(HOSTS)))


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
            daemon.submit(job.name, **as_submitted(job))
        daemon.turns()
    daemon.close()
    return recording


def granted(recording: Recording) -> Told:
    """Return who has which slots of which hosts from when on."""
    told = [
        (now, {name: allocation.parts for name, allocation in decision.allocations.items()})
        for now, _, decision in recording.asked
    ]
    return news(told, digits=6)


@pytest.mark.parametrize("policy", POLICIES)
def test_queue_decides_like_simulator(policy: str, tmp_path: Path) -> None:
    for seed in range(3):
        directory = tmp_path / str(seed)
        directory.mkdir()
        settings = QueueSettings(policy=policy, quantum=QUANTUM)
        jobs = workload(seed)
        simulation, queue = (
            simulated(policy, cluster(), jobs, settings.rules()),
            queued(policy, jobs, settings, directory),
        )
        assert granted(queue) == granted(simulation), f"seed {seed}"


def test_recorded_inputs_give_same_decisions_and_reasons() -> None:
    settings = QueueSettings(quantum=QUANTUM)
    for policy in POLICIES:
        recording = simulated(policy, cluster(), workload(7), settings.rules())
        again = make_policy(policy, settings.rules())
        for now, views, decision in recording.asked:
            assert again.decide(cluster(), views, now) == decision


def test_queue_and_simulator_give_policies_same_view(tmp_path: Path) -> None:
    settings = QueueSettings(policy="srtf", quantum=QUANTUM)
    jobs = workload(1)
    simulation = simulated("srtf", cluster(), jobs, settings.rules())
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


def comparable(view: PolicyJob, now: float) -> Any:
    """Return what both know of a job; sums of times differ in their last digits."""
    sums = round(view.served(now), 3), round(view.ran(now), 3), round(view.remaining(now) or 0.0, 3)
    started = None if view.account.started is None else round(view.account.started, 3)
    account = replace(
        view.account, served_before=0.0, ran_before=0.0, since=round(view.account.since, 3), started=started
    )
    restarting = round(max(view.restarting_until - now, 0.0), 3) if view.allocation is not None else 0.0
    plain = replace(view, batch=None, account=account, largest_run=0, restarting_until=restarting)
    return sums, replace(plain, deadline=round(view.deadline or 0.0, 3))
