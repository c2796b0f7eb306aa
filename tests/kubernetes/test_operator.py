"""The operator's process with a real API server, run in the same way as by its Deployment (see `operators`)."""

from __future__ import annotations

from typing import Any

from tests.kubernetes import operators
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.operators import RunningOperator, holds

KIND_IN_ETCD = "/registry/apiextensions.k8s.io/customresourcedefinitions/mpijobs.kubeflow.org"


def job(name: str) -> dict[str, Any]:
    """Return a job that needs no pods to be noticed."""
    container = {"name": "c", "image": "none", "command": ["true"]}
    specs = {"Launcher": {"template": {"spec": {"containers": [container]}}}}
    spec = {"runPolicy": {"suspend": True}, "mpiReplicaSpecs": specs}
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": name}, "spec": spec}


def test_operator_without_home_and_user_name_watches_jobs(
    operator: RunningOperator, cluster: Cluster, namespace: str
) -> None:
    cluster.apply(job("seen"), namespace=namespace)
    cluster.until(lambda: holds(cluster, namespace, "seen", "Suspended"), "the job is seen")
    assert operator.readiness() == (200, "ok\n")
    assert "Traceback" not in operator.log
    assert "watch of" not in operator.log, "no watch has ended"


def test_watch_recovers_when_kind_is_briefly_unknown(
    operator: RunningOperator, cluster: Cluster, namespace: str
) -> None:
    cluster.control.kill_api_server()
    cluster.control.delete_from_etcd(KIND_IN_ETCD)
    cluster.control.start_api_server()
    cluster.until(
        lambda: "mpijobs" in operator.readiness()[1],
        "the operator is not ready, because it cannot watch MPIJobs",
        instead=lambda: operator.log[-3000:],
    )
    operators.install(cluster)
    cluster.until(lambda: operator.readiness()[0] == 200, "it watches them again", instead=lambda: operator.log[-3000:])
    cluster.apply(job("next"), namespace=namespace)
    cluster.until(lambda: holds(cluster, namespace, "next", "Suspended"), "the job is seen")
