"""MPIJobs of users, with real mpirun and horovodrun, on a real API server.

The nodes have no images: pods see this machine's programs. So the commands that images bring, such as `python`, are
named by their paths, and what an image has in a folder comes from a ConfigMap. All else is as people write it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from mpi_jobs import v1alpha2
from public_mpi_jobs import public_jobs
from tests.kubernetes import operators
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.operators import RunningOperator, holds, mpi_job, wait_ended

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "kube" / "mpijob-v1alpha2.yaml"
RANK = "import os; print('rank', os.environ['OMPI_COMM_WORLD_RANK'], 'of', os.environ['OMPI_COMM_WORLD_SIZE'])"

needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun", path="/usr/bin:/usr/local/bin") is None, reason="no mpirun: apt-get install openmpi-bin"
)
needs_sshd = pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="no sshd: apt-get install openssh-server")


def pods_of(cluster: Cluster, namespace: str, role: str = "") -> dict[str, Any]:
    selector = f"training.kubeflow.org/job-role={role}" if role else ""
    return {pod["metadata"]["name"]: pod for pod in cluster.pods(namespace, selector)}


def worker(image: str = "none", **container: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{"name": "mpi-worker", "image": image, **container}]}}}


def launcher(command: list[str], **container: Any) -> dict[str, Any]:
    only = {"name": "mpi-launcher", "image": "none", "command": command, **container}
    return {"replicas": 1, "template": {"spec": {"containers": [only]}}}


def job(name: str, version: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": f"kubeflow.org/{version}", "kind": "MPIJob", "metadata": {"name": name}, "spec": spec}


# --- the jobs of articles --------------------------------------------------------------------------------------------


@needs_mpirun
def test_published_v1alpha2_job_succeeds(operator: RunningOperator, cluster: Cluster, namespace: str) -> None:
    body = v1alpha2()
    if PUBLISHED.exists():
        import yaml

        body = yaml.safe_load(PUBLISHED.read_text())
    # `python /examples/tensorflow_mnist.py` is what its image has.
    container = body["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    container["args"] = [*container["args"][: container["args"].index("python")], sys.executable, "-c", RANK]
    if "--allow-run-as-root" not in container["args"]:
        container["args"] = ["--allow-run-as-root", *container["args"]]
    name = body["metadata"]["name"]
    cluster.apply(body, namespace=namespace)
    cluster.kubectl("wait", "-n", namespace, "--for=condition=Succeeded", f"mpijob/{name}", "--timeout=60s", seconds=70)
    said = cluster.log(namespace, f"{name}-launcher")
    assert sorted(line for line in said.splitlines() if line.startswith("rank")) == ["rank 0 of 2", "rank 1 of 2"]
    # Its cleanPodPolicy is Running: workers go, and the launcher is kept for its output.
    cluster.until(lambda: list(pods_of(cluster, namespace)) == [f"{name}-launcher"], "the workers are gone")
    shown = cluster.kubectl("get", "mpijob", "-n", namespace, name)
    assert shown.split()[:4] == ["NAME", "STATE", "WORKERS", "WANTED"]
    assert "Succeeded" in shown
    events = cluster.kubectl("describe", "mpijob", "-n", namespace, name)
    assert "MPIJobCreated" in events and "MPIJobSucceeded" in events


def test_published_jobs_and_their_pods_are_admitted(
    operator: RunningOperator, cluster: Cluster, namespace: str
) -> None:
    """No node takes the pods: what is shown is that the server accepts everything that is made of such jobs."""
    bodies = public_jobs()
    bodies["1job"] = job(
        "1job", "v2beta1", mpiReplicaSpecs={"Launcher": launcher(["true"]), "Worker": {"replicas": 1, **worker()}}
    )
    expected = set()
    for name, body in bodies.items():
        body["spec"]["launcherCreationPolicy"] = "AtStartup"
        policy = body["spec"].get("runPolicy", {})
        policy.pop("suspend", None)
        specs = body["spec"]["mpiReplicaSpecs"]
        for replica in specs.values():
            replica["template"]["spec"] |= {"nodeSelector": {"no": "node"}, "hostNetwork": False}
        expected |= {f"{name}-launcher"} | {
            f"{name}-worker-{i}" for i in range(specs.get("Worker", {"replicas": 0})["replicas"])
        }
    cluster.apply(*bodies.values(), namespace=namespace)
    cluster.until(lambda: set(pods_of(cluster, namespace)) == expected, "all pods of all jobs are there")
    (old,) = [pod for name, pod in pods_of(cluster, namespace).items() if name == "tensorflow-mnist-elastic-launcher"]
    assert old["spec"]["serviceAccountName"] == "tensorflow-mnist-elastic-launcher"
    assert "pi-launcher" in cluster.kubectl("get", "pods", "-n", namespace, "-l", "job-name=pi-launcher", "-o", "name")
    assert "job-1job" in cluster.kubectl("get", "services", "-n", namespace, "-l", "app=1job", "-o", "name")
    assert "pi-config" in cluster.kubectl("get", "configmaps", "-n", namespace, "-l", "app=pi", "-o", "name")


PI = """\
#include <mpi.h>
#include <stdio.h>
int main(int argc, char** argv) {
  int rank, size, points = 200000;
  double sum = 0, pi;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int i = rank; i < points; i += size) sum += 4.0 / (1.0 + ((i + 0.5) / points) * ((i + 0.5) / points)) / points;
  MPI_Reduce(&sum, &pi, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("%d processes: pi is %.6f\\n", size, pi);
  MPI_Finalize();
}
"""


@needs_mpirun
@needs_sshd
@pytest.mark.skipif(shutil.which("mpicc", path="/usr/bin") is None, reason="no mpicc: apt-get install libopenmpi-dev")
@pytest.mark.parametrize("shell", ["ssh", "kubexec"])
def test_pi_example_of_v2beta1_succeeds(
    operator: RunningOperator, cluster: Cluster, namespace: str, shell: str
) -> None:
    source = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "source"}, "data": {"pi.c": PI}}
    volume = {"name": "source", "configMap": {"name": "source"}}
    mount = {"volumeMounts": [{"name": "source", "mountPath": "/source"}]}
    # What building the image does.
    build = "/usr/bin/mpicc -o /usr/local/bin/pi /source/pi.c"
    serve = "mkdir -p /run/sshd && exec /usr/sbin/sshd -De" if shell == "ssh" else "exec sleep 1000"
    built = {"exec": {"command": ["test", "-x", "/usr/local/bin/pi"]}, "periodSeconds": 1}
    workers = worker(command=["sh", "-c", f"{build} && {serve}"], readinessProbe=built, **mount)
    first = launcher(
        ["sh", "-c", f"{build} && exec /usr/bin/mpirun --allow-run-as-root -n 4 /usr/local/bin/pi"], **mount
    )
    for replica in (workers, first):
        replica["template"]["spec"]["volumes"] = [volume]
        replica["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    specs = {"Launcher": first, "Worker": {"replicas": 2, **workers}}
    body = job("pi", "v2beta1", slotsPerWorker=2, runPolicy={"cleanPodPolicy": "All"}, mpiReplicaSpecs=specs)
    if shell == "kubexec":
        body["spec"]["remoteShell"] = shell
    cluster.apply(source, body, namespace=namespace)
    wait_ended(cluster, namespace, "pi")
    # Open MPI may add warnings of its own.
    assert "4 processes: pi is 3.141593" in cluster.log(namespace, "pi-launcher").splitlines()


class ElasticJob:
    """A job as the elastic examples of v1 are: horovodrun trains the digits for some time."""

    def __init__(self, cluster: Cluster, namespace: str, epochs: int) -> None:
        self.cluster, self.namespace = cluster, namespace
        train = [sys.executable, str(EXAMPLES / "elastic_digits.py"), "--epochs", str(epochs), "--pause", "0.3"]
        command = [str(Path(sys.executable).with_name("horovodrun"))]
        args = ["-np", "2", "--min-np", "1", "--max-np", "3", "--host-discovery-script", "/etc/mpi/discover_hosts.sh"]
        specs = {"Launcher": launcher(command, args=[*args, *train, "--goal", "0.9"])}
        specs["Worker"] = {"replicas": 2, **worker()}
        for replica in specs.values():
            replica["template"]["spec"]["terminationGracePeriodSeconds"] = 2
        body = job("elastic", "v1", slotsPerWorker=1, cleanPodPolicy="Running", mpiReplicaSpecs=specs)
        cluster.apply(body, namespace=namespace)
        cluster.until(lambda: self.holds("Running"), "it runs")
        cluster.until(lambda: self.says("epoch 1 of"), "it trains", 150)

    def holds(self, kind: str) -> bool:
        return holds(self.cluster, self.namespace, "elastic", kind)

    def says(self, text: str) -> bool:
        return text in self.cluster.kubectl("logs", "-n", self.namespace, "elastic-launcher", check=False)

    def pods(self, role: str) -> dict[str, Any]:
        return pods_of(self.cluster, self.namespace, role)

    def wait(self) -> None:
        """Wait for its end: the accuracy is as without anything, and the launcher is the first one."""
        wait_ended(self.cluster, self.namespace, "elastic")
        assert list(self.pods("launcher")) == ["elastic-launcher"], "the launcher went on all the time"


@pytest.mark.timeout(600)
def test_horovod_elastic_job_survives_eviction(operator: RunningOperator, cluster: Cluster, namespace: str) -> None:
    elastic = ElasticJob(cluster, namespace, epochs=5)
    uid = elastic.pods("worker")["elastic-worker-1"]["metadata"]["uid"]
    operator.kill()
    cluster.evict_for_pressure(namespace, "elastic-worker-1")
    operator.start()
    cluster.until(lambda: elastic.holds("Restarting"), "the loss is told, when the dead operator's Lease is over")

    def replaced() -> bool:
        pod = elastic.pods("worker").get("elastic-worker-1")
        return pod is not None and pod["metadata"]["uid"] != uid and pod["status"].get("phase") == "Running"

    cluster.until(replaced, "the worker is made again")
    cluster.until(lambda: elastic.holds("Running"), "it runs again")
    elastic.wait()
    assert mpi_job(cluster, namespace, "elastic")["status"]["history"]["disruptions"] == 1


@pytest.mark.timeout(600)
def test_horovod_elastic_job_is_scaled_while_it_trains(
    operator: RunningOperator, cluster: Cluster, namespace: str
) -> None:
    elastic = ElasticJob(cluster, namespace, epochs=4)
    cluster.kubectl("scale", "-n", namespace, "mpijob/elastic", "--replicas=3")
    cluster.until(lambda: elastic.says("3 workers, step"), "it trains with three")
    cluster.kubectl("scale", "-n", namespace, "mpijob/elastic", "--replicas=2")
    cluster.until(lambda: len(elastic.pods("worker")) == 2, "the third goes, drained")
    assert elastic.holds("Running")
    elastic.wait()
    assert "history" not in mpi_job(cluster, namespace, "elastic")["status"] or not mpi_job(
        cluster, namespace, "elastic"
    )["status"]["history"].get("disruptions"), "who was drained was not lost"


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_exceeded_quota_is_a_condition(operator: RunningOperator, cluster: Cluster, namespace: str) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "1"}},
    }
    cluster.apply(quota, namespace=namespace)
    cluster.until(
        lambda: cluster.api.get(f"/api/v1/namespaces/{namespace}/resourcequotas/small").get("status"), "it is counted"
    )
    specs = {"Launcher": launcher(["true"]), "Worker": {"replicas": 2, **worker(command=["sleep", "1000"])}}
    cluster.apply(job("quota", "v2beta1", mpiReplicaSpecs=specs), namespace=namespace)
    cluster.until(lambda: holds(cluster, namespace, "quota", "Blocked"), "it says what is in its way")
    (blocked,) = [
        item for item in mpi_job(cluster, namespace, "quota")["status"]["conditions"] if item["type"] == "Blocked"
    ]
    assert blocked["reason"] == "QuotaExceeded"
    cluster.kubectl("delete", "quota", "-n", namespace, "small")
    wait_ended(cluster, namespace, "quota")


def test_suspended_job_releases_everything_and_continues_later(
    operator: RunningOperator, cluster: Cluster, namespace: str
) -> None:
    workers = worker(command=["sh", "-c", "trap exit TERM; sleep 1000 & wait"])
    specs = {"Launcher": launcher(["sh", "-c", "trap 'exit 1' TERM; sleep 3 & wait"]), "Worker": workers}
    body = job("pause", "v2beta1", runPolicy={"suspend": True, "backoffLimit": 0}, mpiReplicaSpecs=specs)
    cluster.apply(body, namespace=namespace)
    cluster.until(lambda: holds(cluster, namespace, "pause", "Suspended"), "it is suspended")
    assert pods_of(cluster, namespace) == {}
    patch = f"/apis/kubeflow.org/v2beta1/namespaces/{namespace}/mpijobs/pause"
    cluster.api.patch(patch, {"spec": {"runPolicy": {"suspend": False}}})
    cluster.until(lambda: holds(cluster, namespace, "pause", "Running"), "it runs")
    cluster.api.patch(patch, {"spec": {"runPolicy": {"suspend": True}}})
    cluster.until(lambda: pods_of(cluster, namespace) == {}, "its pods are gone")
    cluster.api.patch(patch, {"spec": {"runPolicy": {"suspend": False}}})
    wait_ended(cluster, namespace, "pause")


def test_expired_job_leaves_nothing(operator: RunningOperator, cluster: Cluster, namespace: str) -> None:
    workers = worker(command=["sh", "-c", "trap exit TERM; sleep 1000 & wait"])
    policy = {"ttlSecondsAfterFinished": 1}
    specs = {"Launcher": launcher(["true"]), "Worker": workers}
    cluster.apply(job("short", "v2beta1", runPolicy=policy, mpiReplicaSpecs=specs), namespace=namespace)
    kinds = "mpijobs,pods,services,configmaps,secrets,roles,rolebindings,serviceaccounts"
    mine = f"{kinds} -n {namespace} -l farandole.dev/job=short -o name".split()
    cluster.until(lambda: "mpijob" in cluster.kubectl("get", "mpijobs", "-n", namespace, "-o", "name"), "it is there")
    cluster.until(lambda: not cluster.kubectl("get", "mpijobs", "-n", namespace, "-o", "name"), "it is gone")
    cluster.until(lambda: not cluster.kubectl("get", *mine), "nothing of it is left")


def test_operator_has_exactly_the_rights_of_the_table(
    operator: RunningOperator, cluster: Cluster, namespace: str
) -> None:
    config = str(operators.account_config(cluster, "rights"))

    def may(*words: str) -> bool:
        return cluster.kubectl("--kubeconfig", config, "auth", "can-i", *words, check=False).startswith("yes")

    assert may("create", "pods", "-n", namespace)
    assert may("create", "secrets", "-n", namespace)
    refused = [("get", "secrets"), ("list", "secrets"), ("delete", "namespaces"), ("get", "nodes")]
    refused += [("update", "mpijobs.kubeflow.org"), ("impersonate", "users"), ("create", "clusterroles")]
    assert [words for words in refused if may(*words, "-n", namespace)] == []


def test_rights_of_launcher_are_limited_to_its_own_workers(
    operator: RunningOperator, cluster: Cluster, namespace: str
) -> None:
    other = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}}
    other["spec"] = {"containers": [{"name": "c", "image": "none", "command": ["sleep", "1000"]}]}
    asks = "/etc/mpi/kubexec.sh mine-worker-0 echo in && ! /etc/mpi/kubexec.sh other echo out && ! kubectl get secrets"
    workers = worker(command=["sleep", "1000"])
    specs = {"Launcher": launcher(["sh", "-c", asks]), "Worker": workers}
    cluster.apply(other, job("mine", "v1", mpiReplicaSpecs=specs), namespace=namespace)
    wait_ended(cluster, namespace, "mine")
    said = cluster.log(namespace, "mine-launcher")
    assert "in\n" in said and "out\n" not in said
    assert 'pods "other" is forbidden' in said
