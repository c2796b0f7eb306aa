"""Gang scheduling of a TrainingJob's launcher and least workers; and the preferred nodes of its pods."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.kubernetes.training_job.played_cluster import PlayedCluster, job_of

from farandole.control.kubernetes.admission import Admission
from farandole.control.kubernetes.model import Observed, Options
from farandole.control.kubernetes.training_job.job_spec import read
from farandole.control.kubernetes.training_job.reconcile import reconcile


def played(scheduler: str, **spec: Any) -> PlayedCluster:
    """Return a job whose objects are made, under an operator with a gang scheduler."""
    cluster = PlayedCluster(job_of(**spec), Options(gang_scheduler=scheduler))
    cluster.settle()
    return cluster


def groups(cluster: PlayedCluster) -> list[dict[str, Any]]:
    return [child for ref, child in cluster.children.items() if ref.kind == "PodGroup"]


RESOURCES = {"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "1"}


def test_volcano_gets_total_resources_of_launcher_and_least_workers() -> None:
    (group,) = groups(played("volcano", resources=RESOURCES, priorityClassName="high"))

    assert group["apiVersion"] == "scheduling.volcano.sh/v1beta1"
    # 2 workers, although 3 are asked for; and the launcher with its 100m and 128Mi.
    assert group["spec"] == {
        "minMember": 3,
        "minTaskMember": {"launcher": 1, "worker": 2},
        "minResources": {"cpu": "3100m", "memory": str((2 * 1024 + 128) * 2**20), "nvidia.com/gpu": "2"},
        "priorityClassName": "high",
    }


def test_pods_carry_their_role_for_volcano() -> None:
    cluster = played("volcano")
    for role in ("launcher", "worker"):
        assert {pod["metadata"]["annotations"]["volcano.sh/task-spec"] for pod in cluster.pods(role)} == {role}


def test_coscheduling_plugin_gets_group_with_all_pods() -> None:
    cluster = played("plugins", slotsPerPod=2, resources=RESOURCES)

    (group,) = groups(cluster)
    assert group["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
    assert group["spec"]["minMember"] == 2, "one pod has both of the least workers"
    for pod in cluster.pods():
        assert pod["spec"]["schedulerName"] == "plugins"
        assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == group["metadata"]["name"]


def test_pod_group_is_created_before_its_pods() -> None:
    cluster = PlayedCluster(job_of(), Options(gang_scheduler="volcano"))
    kinds = [wanted.ref.kind for wanted in cluster.reconcile().wanted]
    assert kinds.index("PodGroup") < kinds.index("Pod")


def test_replacement_pod_belongs_to_same_group() -> None:
    cluster = played("volcano")
    cluster.run_all()
    cluster.end(cluster.pods("worker")[0], 1, reason="Evicted")
    cluster.settle()
    cluster.now += 5
    cluster.settle()

    assert "job-worker-3" in cluster.names("worker")
    annotations = {pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] for pod in cluster.pods()}
    assert annotations == {"job"}
    assert len(groups(cluster)) == 1


def test_scaling_does_not_change_group_size() -> None:
    cluster = played("volcano")
    before = groups(cluster)[0]["spec"]
    cluster.job["spec"]["workers"] = {"min": 2, "max": 4, "replicas": 4}
    cluster.settle()
    assert groups(cluster)[0]["spec"] == before
    assert len(cluster.pods("worker")) == 4


@pytest.mark.parametrize("end", ["suspend", "cancel"])
def test_suspended_job_has_no_pod_group(end: str) -> None:
    cluster = played("volcano")
    cluster.job["spec"][end] = True
    cluster.settle()
    assert groups(cluster) == []


def test_queued_job_has_no_pod_group() -> None:
    cluster = played("volcano")
    pods = {ref: child for ref, child in cluster.children.items() if ref.kind == "PodGroup"}
    waits = Observed(cluster.job, pods, {}, cluster.now, cluster.options, Admission(0, "waits: others come first now"))

    assert [deletion.ref.kind for deletion in reconcile(waits).deletions] == ["PodGroup"]


def test_no_pod_group_without_gang_scheduler() -> None:
    cluster = played("")
    assert groups(cluster) == []
    assert all("schedulerName" not in pod["spec"] for pod in cluster.pods())


def test_job_with_too_few_workers_is_waiting() -> None:
    cluster = played("volcano")
    cluster.pods("worker")[0]["status"]["phase"] = "Running"
    cluster.settle()
    assert cluster.status["state"] != "Running"
    assert cluster.status["reason"] == "1 of 3 worker pods run; the training begins with 2 workers"


# --- hints -----------------------------------------------------------------------------------------------------------


def test_hints_extend_preferences_of_template_and_are_never_required() -> None:
    theirs = {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    wishes = "preferredDuringSchedulingIgnoredDuringExecution"
    template = {"spec": {"affinity": {"nodeAffinity": {wishes: [theirs]}}}}
    cluster = played(
        "", topologySpread="zone", keepTogether="rack", preferNodes={"gpu": "h100", "net": "ib"}, template=template
    )
    body = cluster.pods("worker")[0]["spec"]

    labels = {"farandole.dev/job": "job", "farandole.dev/kind": "trainingjobs", "farandole.dev/role": "worker"}
    (spread,) = body["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("zone", "ScheduleAnyway")
    assert spread["labelSelector"] == {"matchLabels": labels}
    first, ours = body["affinity"]["nodeAffinity"][wishes]
    assert first == theirs
    assert ours["preference"]["matchExpressions"] == [
        {"key": "gpu", "operator": "In", "values": ["h100"]},
        {"key": "net", "operator": "In", "values": ["ib"]},
    ]
    (together,) = body["affinity"]["podAffinity"][wishes]
    assert together["podAffinityTerm"] == {"labelSelector": {"matchLabels": labels}, "topologyKey": "rack"}
    assert all(set(kind) == {wishes} for kind in body["affinity"].values())
    assert "affinity" not in cluster.pods("launcher")[0]["spec"]


@pytest.mark.parametrize(
    "spec",
    [
        {"preferNodes": {"gpu": 1}},
        {"preferNodes": ["gpu"]},
        {"keepTogether": 3},
        {"template": {"spec": {"affinity": "near"}}},
        {"template": {"spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": 1}}}}},
        {"template": {"spec": {"topologySpreadConstraints": {}}}},
    ],
)
def test_invalid_hints_are_reported(spec: dict[str, Any]) -> None:
    found, faults = read(job_of(**spec))
    assert found is None
    assert len(faults) == 1
