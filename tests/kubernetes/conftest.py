"""The fixtures `cluster`, `operator` and `namespace`, and the order of files.

All tests share one control plane and one operator, which take longer to start than most tests take.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes import binaries, operators
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.operators import RunningOperator

_numbers = itertools.count(1)
_FOLDER = Path(__file__).parent
# The controller that deletes what is owned learns only every 30 s of kinds that are installed: what waits for that
# comes late. What is installed for all tests is taken away at the end.
_LAST = ("test_api_conformance.py", "test_install.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have what is in `_LAST` run after the other tests of this folder."""
    places = [place for place, item in enumerate(items) if item.path.parent == _FOLDER]
    mine = sorted((items[place] for place in places), key=lambda item: _rank(item.path.name))
    for place, item in zip(places, mine, strict=True):
        items[place] = item
    for item in mine:
        if item.get_closest_marker("timeout") is None:
            # The first one starts the control plane, and a busy machine needs ten times as long for all of them.
            item.add_marker(pytest.mark.timeout(400))


def _rank(file: str) -> int:
    return _LAST.index(file) + 1 if file in _LAST else 0


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Return a cluster of three nodes that all tests share; a test that loses a node starts it again."""
    reason = binaries.why_not()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def operator(cluster: Cluster) -> Iterator[RunningOperator]:
    """Return an operator with the rights that the installation gives it; a test that kills it starts it again."""
    operators.install(cluster)
    with operators.operator(cluster, "operator", "--drain-seconds", "3") as one:
        cluster.until(lambda: one.leads, "the operator leads")
        yield one


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
