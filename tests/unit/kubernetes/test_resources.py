"""The total requests of pods, in Kubernetes' own units."""

from __future__ import annotations

from typing import Any

import pytest

from farandole.control.kubernetes import resources


def pod(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"containers": [{"resources": each} for each in containers], **more}


def test_requests_of_all_containers_are_added_and_a_limit_alone_is_a_request() -> None:
    body = pod({"requests": {"cpu": "100m"}, "limits": {"cpu": "2", "memory": "1Gi"}}, {"limits": {"cpu": "0.5"}})
    assert resources.of_pods([(3, body)]) == {"cpu": "1800m", "memory": str(3 * 2**30)}


def test_an_initial_container_counts_if_it_needs_more_and_the_overhead_always() -> None:
    initial = [{"resources": {"requests": {"cpu": "4", "memory": "1"}}}]
    body = pod({"requests": {"cpu": "1", "memory": "2"}}, initContainers=initial, overhead={"cpu": "250m"})
    assert resources.of_pods([(2, body)]) == {"cpu": "8500m", "memory": "4"}


def test_a_sidecar_runs_beside_the_containers_and_beside_the_initial_ones_after_it() -> None:
    sidecar = {"restartPolicy": "Always", "resources": {"requests": {"cpu": "500m", "memory": "1"}}}
    first, later = ({"resources": {"requests": {"cpu": cpu}}} for cpu in ("3", "2"))
    body = pod({"requests": {"cpu": "1", "memory": "2"}}, initContainers=[first, sidecar, later])
    assert resources.of_pods([(1, body)]) == {"cpu": "3", "memory": "3"}
    body = pod({"requests": {"cpu": "1", "memory": "2"}}, initContainers=[sidecar, later])
    assert resources.of_pods([(1, body)]) == {"cpu": "2500m", "memory": "3"}


def test_pods_of_several_specs_are_added() -> None:
    bodies = [(1, pod({"requests": {"cpu": 1}})), (2, pod({"requests": {"cpu": "1e1", "example.com/x": "1"}}))]
    assert resources.of_pods(bodies) == {"cpu": "21", "example.com/x": "2"}


@pytest.mark.parametrize("amount", ["many", "", None, [], {}, "1e999999999"])
def test_invalid_amount_makes_result_empty(amount: object) -> None:
    assert resources.of_pods([(1, pod({"requests": {"cpu": amount}}))]) == {}


def test_pods_without_requests_have_no_total() -> None:
    assert resources.of_pods([(5, {}), (1, {"containers": [3, {"resources": "no"}]})]) == {}
