"""Elastic jobs on a cluster whose nodes are lost and added."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ray.conftest import until
from tests.ray.test_elastic import Job

MEMORY = 100_000_000


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A cluster of a head without CPUs, to which tests add nodes."""
    import ray
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=options)
    ray.init(address=cluster.address)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_training_goes_on_when_node_is_lost_and_grows_on_a_new_one(
    nodes: Any, nothing_left: None, tmp_path: Path
) -> None:
    first = nodes.add_node(num_cpus=1, object_store_memory=MEMORY)
    nodes.add_node(num_cpus=1, object_store_memory=MEMORY)
    job = Job(tmp_path, 2, min_workers=1, max_workers=2)
    job.reaches(2)
    nodes.remove_node(first, allow_graceful=False)
    job.reaches(1)
    nodes.add_node(num_cpus=1, object_store_memory=MEMORY)
    job.reaches(2)
    results = job.finish()
    assert len(results) == 2 and results[0] == results[1]


def test_job_waits_for_a_node_that_has_room(nodes: Any, nothing_left: None, tmp_path: Path) -> None:
    job = Job(tmp_path, 1, min_workers=1, max_workers=1)
    until(lambda: any(each["state"] == "PENDING" for each in _groups()))
    nodes.add_node(num_cpus=1, object_store_memory=MEMORY)
    job.reaches(1)
    assert len(job.finish()) == 1


def _groups() -> list[dict[str, Any]]:
    import ray

    return list(ray.util.placement_group_table().values())
