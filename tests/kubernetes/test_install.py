"""`farandole kubernetes install` and `uninstall`, as people use them."""

from __future__ import annotations

from tests.kubernetes import operators
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.operators import RunningOperator, farandole

KINDS = "namespaces,crds,clusterroles,clusterrolebindings,deployments,roles,rolebindings,serviceaccounts,pdb"


def ours(cluster: Cluster) -> list[str]:
    words = ["get", KINDS, "-A", "-l", "app.kubernetes.io/part-of=farandole", "-o", "name"]
    return sorted(cluster.kubectl(*words).split())


def test_install_is_idempotent_and_uninstall_removes_everything(
    operator: RunningOperator, cluster: Cluster, namespace: str
) -> None:
    operator.stop()  # No other test comes that needs it.
    first = ours(cluster)
    assert "customresourcedefinition.apiextensions.k8s.io/mpijobs.kubeflow.org" in first
    operators.install(cluster)
    assert ours(cluster) == first
    spec = {"mpiReplicaSpecs": {"Worker": {"replicas": 1}}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "MPIJob", "metadata": {"name": "here"}, "spec": spec}
    cluster.apply(job, namespace=namespace)
    # The version that it was written in stays with the job, in what its launcher does.
    shell = cluster.kubectl("get", "mpijobs.v2beta1.kubeflow.org", "-n", namespace, "-o", "jsonpath={..remoteShell}")
    assert shell == "kubexec"
    refused = farandole(cluster, "kubernetes", "uninstall", check=False)
    assert refused.returncode == 1
    assert f"MPIJob {namespace}/here" in refused.stderr and "--delete-jobs" in refused.stderr
    assert ours(cluster) == first
    farandole(cluster, "kubernetes", "uninstall", "--delete-jobs")
    assert ours(cluster) == []
    assert "deleted" not in farandole(cluster, "kubernetes", "uninstall").stderr


def test_errors_have_a_next_step(cluster: Cluster) -> None:
    rights = farandole(cluster, "kubernetes", "instal", check=False)
    assert rights.returncode == 2
    assert "did you mean install?" in rights.stderr
