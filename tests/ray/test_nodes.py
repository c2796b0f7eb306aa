"""Elastic jobs on a cluster whose nodes are lost and added."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ray.conftest import SECONDS, patiently, until
from tests.ray.jobs import Job, actor_of, dialer_of, parent_of, train, train_and_record, what_is_wrong

MEMORY = 100_000_000


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A cluster of a head without CPUs, to which tests add nodes."""
    import ray
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
    cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=options))
    ray.init(address=cluster.address)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_training_goes_on_when_node_is_lost_and_grows_on_a_new_one(nodes: Any, start_job: Callable[..., Job]) -> None:
    first = add_node(nodes)
    add_node(nodes)
    job = start_job({"min_workers": 1, "max_workers": 2}, train, 2)
    job.reaches(2)
    nodes.remove_node(first, allow_graceful=False)
    job.reaches(1)
    add_node(nodes)
    job.reaches(2)
    results = job.finish()
    assert len(results) == 2 and results[0] == results[1]


def drain(nodes: Any, node: Any) -> None:
    """Let Ray announce that a node is about to go, as an autoscaler does."""
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    deadline = int((time.time() + SECONDS) * 1000)
    reason = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    accepted, why = GcsClient(address=nodes.address).drain_node(node.node_id, reason, "as told", deadline)
    assert accepted, why


def test_worker_leaves_a_node_that_ray_drains_before_it_goes(
    nodes: Any, start_job: Callable[..., Job], tmp_path: Path
) -> None:
    first, second = add_node(nodes), add_node(nodes)
    job = start_job({"min_workers": 1, "max_workers": 2}, train_and_record)
    job.reaches(2)
    until(lambda: len(job.workers()) == 2)
    actors = {pid: actor_of(pid) for pid in job.workers()}
    (leaving,) = [pid for pid, actor in actors.items() if parent_of(actor) == raylet_of(first)]
    drain(nodes, first)
    until(lambda: leaving not in job.workers())
    assert Path(f"/proc/{actors[leaving]}").exists() and Path(f"/proc/{raylet_of(first)}").exists()
    job.reaches(1)
    nodes.remove_node(first, allow_graceful=False)
    add_node(nodes)
    job.reaches(2)
    assert raylet_of(second) in [parent_of(actor_of(pid)) for pid in job.workers()], "the other one has trained on"
    job.finish()
    assert what_is_wrong(tmp_path) == []
    (left,) = tmp_path.glob(f"book.{leaving}")
    assert left.read_text().endswith("\n"), "its last step is whole"


def test_job_waits_for_a_node_that_has_room(nodes: Any, start_job: Callable[..., Job]) -> None:
    job = start_job({"min_workers": 1, "max_workers": 1}, train, 1)
    until(lambda: any(each["state"] == "PENDING" for each in _groups()))
    add_node(nodes)
    job.reaches(1)
    assert len(job.finish()) == 1


def _groups() -> list[dict[str, Any]]:
    import ray

    return list(ray.util.placement_group_table().values())


EVENTS = 20


def add_node(nodes: Any) -> Any:
    """Add a node with a CPU."""
    return patiently(lambda: nodes.add_node(num_cpus=1, object_store_memory=MEMORY))


def raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


@pytest.mark.timeout(6000)
def test_each_sample_is_used_once_through_20_random_events(
    nodes: Any, start_job: Callable[..., Job], tmp_path: Path
) -> None:
    chance = random.Random(11)
    added = [add_node(nodes) for _ in range(3)]
    job = start_job({"min_workers": 1, "max_workers": 3}, train_and_record)
    job.reaches(3)
    for _ in range(EVENTS):
        event = chance.choice(["worker", "dialer", "actor", "node lost", "node added"])
        ended: list[int] = []
        if event == "node added" and len(added) < 4:
            added.append(add_node(nodes))
        elif event == "node lost" and len(added) > 2:
            lost = added.pop(chance.randrange(len(added)))
            ended = [pid for pid in job.workers() if parent_of(actor_of(pid)) == raylet_of(lost)]
            nodes.remove_node(lost, allow_graceful=False)
        else:
            find = {"dialer": dialer_of, "actor": actor_of}.get(event, lambda pid: pid)
            ended = [chance.choice(job.workers())]
            os.kill(find(ended[0]), signal.SIGKILL)
        until(lambda ended=ended: not set(ended) & set(job.workers()))
        # So the state outlives the loss of any one worker.
        until(lambda: job.error or len(job.workers()) >= 2)
        job.reaches(2, 3)
    results = job.finish()
    assert len({tuple(each) for each in results}) == 1
    assert what_is_wrong(tmp_path) == []
