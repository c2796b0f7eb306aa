"""Other people's MPIJobs, each through the schema of the kind and through `reconcile`: what mpi-operator does, we do.

What is otherwise on purpose stands in the page on Kubernetes, in the table for those who come from mpi-operator.
"""

from __future__ import annotations

from typing import Any

import mpi_operator
import pytest
from mpi_operator import Seen
from played_cluster import PlayedCluster
from public_mpi_jobs import container, job, pod, public_jobs

from farandole.control.kubernetes import names
from farandole.control.kubernetes.deploy import crds
from farandole.control.kubernetes.model import Options
from farandole.control.kubernetes.mpijob import job_spec
from farandole.control.kubernetes.mpijob.reconcile import reconcile

JOBS = public_jobs()


def admitted(body: dict[str, Any]) -> dict[str, Any]:
    """Return a job as the API server keeps it: checked by the schema of its version, with what that fills in."""
    version = body["apiVersion"].rpartition("/")[2]
    (schema,) = [
        each["schema"]["openAPIV3Schema"] for each in crds.mpi_job()["spec"]["versions"] if each["name"] == version
    ]
    spec = checked(body["spec"], schema["properties"]["spec"], "spec")
    # It is kept, and shown to the operator, in the one version that is stored.
    return {**body, "apiVersion": "kubeflow.org/v2beta1", "spec": spec}


def checked(value: Any, schema: dict[str, Any], where: str) -> Any:
    """Return a value as a structural schema leaves it; raises AssertionError where the server would refuse it."""
    kinds = {"object": dict, "string": str, "integer": int, "boolean": bool, "array": list}
    if "type" in schema:
        assert isinstance(value, kinds[schema["type"]]), f"{where}: {value!r} is not of type {schema['type']}"
    assert "enum" not in schema or value in schema["enum"], f"{where}: {value!r} is none of {schema['enum']}"
    assert not isinstance(value, int) or value >= schema.get("minimum", value), f"{where}: {value} is too small"
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    missing = [name for name in schema.get("required", ()) if name not in value]
    assert not missing, f"{where}: {missing} is required"
    filled = {name: each["default"] for name, each in schema["properties"].items() if "default" in each} | value
    surplus = set(filled) - set(schema["properties"])
    assert not surplus, f"{where}: {surplus} would be dropped"
    return {name: checked(each, schema["properties"][name], f"{where}.{name}") for name, each in filled.items()}


def played(body: dict[str, Any]) -> PlayedCluster:
    return PlayedCluster(admitted(body), reconcile, Options(image="operator:1"))


def main_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    containers: list[dict[str, Any]] = found["spec"]["containers"]
    return next((each for each in containers if each["name"] == name), containers[0])


def compare(found: dict[str, Any], expected: Seen, main: str, template: dict[str, Any]) -> None:
    """See that a pod shows what the same pod of mpi-operator shows, and the variables that its template sets."""
    assert found["metadata"]["name"] == found["spec"]["hostname"] == expected.name
    labels = found["metadata"]["labels"]
    assert {key: labels.get(key) for key in expected.labels} == expected.labels
    container = main_of(found, main)
    variables = [each["name"] for each in container["env"]]
    assert len(variables) == len(set(variables)), "no variable is there twice"
    values = {each["name"]: each.get("value") for each in container["env"]}
    theirs = {each["name"]: each.get("value") for each in main_of({"spec": template}, main).get("env") or ()}
    for name, value in {**expected.environment, **theirs}.items():
        begins = (value or "").removesuffix("...")
        assert values[name] == value or (begins != value and values[name].startswith(begins)), name
    assert {each["mountPath"] for each in container["volumeMounts"]} >= expected.mounts
    assert found["spec"].get("serviceAccountName", "") == expected.account
    assert set(found["spec"]["dnsConfig"]["searches"]) >= set(expected.searches)
    waits = expected.command == ["sleep"]
    assert ("sleep 365d" in container["command"][-1]) if waits else container.get("command") == expected.command
    assert container.get("args") == (None if waits else expected.args)
    if expected.restart:
        assert found["spec"]["restartPolicy"] == expected.restart


@pytest.mark.parametrize("name", JOBS)
def test_published_job_runs_like_with_mpi_operator(name: str) -> None:
    body = JOBS[name]
    cluster = played(body)
    if body["spec"].get("runPolicy", {}).pop("suspend", False):
        cluster.settle()
        assert cluster.condition("Suspended") == ("True", "MPIJobSuspended")
        assert cluster.pods() == {}
        cluster.job["spec"]["runPolicy"]["suspend"] = False  # type: ignore[index]
    cluster.start()
    assert cluster.condition("Running") == ("True", "MPIJobRunning")

    main = body["spec"].get("mainContainer", "")
    templates = {role: each["template"]["spec"] for role, each in body["spec"]["mpiReplicaSpecs"].items()}
    compare(dict(cluster.launcher()), mpi_operator.launcher(body), main, templates["Launcher"])
    workers = cluster.pods(names.WORKER)
    assert len(workers) == mpi_operator.workers(body)
    for index in range(len(workers)):
        expected = mpi_operator.worker(body, index)
        compare(workers[expected.name], expected, main, templates["Worker"])
    assert cluster.config()["hostfile"] == mpi_operator.host_file(body)
    warned = "SetPodTemplateRestartPolicy" in cluster.events
    assert warned == ("restartPolicy" in templates["Launcher"])
    beside = [obj for ref, obj in cluster.objects.items() if ref.kind != "Pod"]
    assert {obj["metadata"]["labels"]["app"] for obj in beside} == {name}

    statuses = cluster.job["status"]["replicaStatuses"]  # type: ignore[index]
    assert statuses["Launcher"] == {"active": 1} and statuses["Worker"].get("active", 0) == len(workers)
    cluster.end(f"{name}-launcher")
    cluster.settle()
    assert cluster.condition("Succeeded") == ("True", "MPIJobSucceeded")
    assert cluster.condition("Running") == ("False", "MPIJobSucceeded")
    assert cluster.job["status"]["replicaStatuses"]["Launcher"] == {"succeeded": 1}  # type: ignore[index]


@pytest.mark.parametrize("implementation", ["OpenMPI", "Intel", "MPICH"])
@pytest.mark.parametrize("shell", ["ssh", "kubexec"])
def test_each_implementation_gets_hosts_and_remote_shell(implementation: str, shell: str) -> None:
    launcher, worker = pod(container("l", ["mpirun"])), pod(container("w"))
    body = job("a", "v2beta1", {"template": launcher}, {"template": worker}, mpiImplementation=implementation)
    body["spec"]["remoteShell"] = shell
    cluster = played(body)
    cluster.start()
    values = {each["name"]: each["value"] for each in main_of(dict(cluster.launcher()), "l")["env"]}
    # Seen with the programs themselves: Open MPI 4.1 and 5.0.11, and MPICH 5.0.2.
    lists = {
        "OpenMPI": ["OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"],
        "Intel": ["I_MPI_HYDRA_HOST_FILE"],
        "MPICH": ["HYDRA_HOST_FILE"],
    }
    assert {values[name] for name in lists[implementation]} == {"/etc/mpi/hostfile"}
    agents = {
        "OpenMPI": {"OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"},
        "Intel": {"I_MPI_HYDRA_BOOTSTRAP_EXEC"},
        "MPICH": {"HYDRA_LAUNCHER_EXEC"},
    }
    told = {name for name, value in values.items() if value == "/etc/mpi/kubexec.sh"}
    assert told == (agents[implementation] if shell == "kubexec" else set())
    # Else Hydra would write options of ssh before the host.
    plain = {"Intel": "I_MPI_HYDRA_BOOTSTRAP", "MPICH": "HYDRA_LAUNCHER"}.get(implementation)
    if plain:
        assert values.get(plain) == ("rsh" if shell == "kubexec" else None)
    assert "PRTE_MCA_prte_keep_fqdn_hostnames" not in values, "a launcher that works would not know itself"


@pytest.mark.parametrize(
    ("letters", "workers", "fits"), [(54, 2, True), (55, 2, False), (53, 11, True), (53, 100, True), (52, 1001, False)]
)
def test_length_of_name_is_limited_by_host_names_of_pods(letters: int, workers: int, fits: bool) -> None:
    launcher, worker = pod(container("l")), pod(container("w"))
    body = job("n" * letters, "v2beta1", {"template": launcher}, {"template": worker}, replicas=workers)
    spec, faults = job_spec.read(body)
    assert (spec is not None) == fits
    assert fits or "the host names of its pods" in faults[0]


def test_dns_config_of_template_gets_one_more_domain() -> None:
    cluster = played(JOBS["rdma"])
    cluster.start()
    spec = cluster.pod("rdma-worker-0")["spec"]
    assert spec["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert spec["dnsConfig"] == {
        "searches": ["storage.local", "rdma.default.svc.cluster.local"],
        "options": [{"name": "ndots", "value": "2"}],
    }
