"""The fixtures `cluster` and `namespace`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from tests.kubernetes import binaries
from tests.kubernetes.cluster import Cluster

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Return a cluster of three nodes that all tests share; a test that loses a node starts it again."""
    reason = binaries.why_not()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(3) as cluster:
        yield cluster


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """Return a namespace of the test's own; all in it is deleted when the test ends."""
    name = f"test-{next(_numbers)}"
    cluster.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    cluster.until(lambda: cluster.api.find(account), f"namespace {name} has its ServiceAccount")
    yield name
    cluster.api.delete(f"/api/v1/namespaces/{name}")
    pods = f"/api/v1/namespaces/{name}/pods"
    for pod in cluster.api.items(pods):
        cluster.api.delete(f"{pods}/{pod['metadata']['name']}", gracePeriodSeconds=0)
