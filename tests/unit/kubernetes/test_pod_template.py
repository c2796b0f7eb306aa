"""Pod templates to which nothing can be added are refused with a sentence for each fault."""

from __future__ import annotations

from typing import Any

import pytest

from farandole.control.kubernetes.field_reader import FieldReader, other_manager
from farandole.control.kubernetes.pod_template import check_pod


def container(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "worker", **fields}]}


@pytest.mark.parametrize(
    ("pod", "fault"),
    [
        ({"containers": 7}, "template.spec.containers: 7 is not a list"),
        ({"containers": [{"name": ""}]}, "template.spec.containers: {'name': ''} has no name"),
        ({"containers": ["worker"]}, "template.spec.containers: 'worker' has no name"),
        ({"securityContext": True}, "template.spec.securityContext: True is not an object"),
        ({"dnsConfig": {"searches": "a.b"}}, "template.spec.dnsConfig.searches: 'a.b' is not a list"),
        (container(args="--fast"), "template.spec.containers worker.args: '--fast' is not a list"),
        (container(env=["A=1"]), "template.spec.containers worker.env: 'A=1' is not an object"),
        (container(resources=[1]), "template.spec.containers worker.resources: [1] is not an object"),
        (
            container(resources={"limits": "all"}),
            "template.spec.containers worker.resources.limits: 'all' is not an object",
        ),
    ],
)
def test_each_fault_is_named_with_its_place(pod: dict[str, Any], fault: str) -> None:
    reader = FieldReader()
    check_pod(reader, pod, "template.spec")
    assert reader.faults == [fault]


def test_a_usual_pod_has_no_fault() -> None:
    reader = FieldReader()
    check_pod(reader, container(env=[{"name": "A", "value": "1"}], resources={"limits": {"cpu": 1}}), "template.spec")
    assert reader.faults == []


@pytest.mark.parametrize(
    ("spec", "manager"),
    [
        ({}, ""),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, "kueue.x-k8s.io/multikueue"),
        ({"managedBy": "farandole.io/operator", "runPolicy": {"managedBy": "theirs/other"}}, "theirs/other"),
        ({"runPolicy": {"managedBy": "ours/old-name"}}, ""),
        ({"runPolicy": 7, "managedBy": 7}, ""),
        (None, ""),
    ],
)
def test_manager_of_a_job_is_another_one_only_if_it_is_not_this_operator(spec: Any, manager: str) -> None:
    assert other_manager({"spec": spec}, "ours/old-name") == manager
