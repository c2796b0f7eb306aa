"""The pods that Kubeflow's mpi-operator makes from an MPIJob, reimplemented from its code, as a reference for
farandole's.

For v2beta1, this is release 0.8; for v1 and v1alpha2, the last release that served them. It covers what users' images,
scripts and tools can observe of a pod.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SSH_ARGUMENTS = "-o ConnectionAttempts=10"


@dataclass
class Seen:
    """The observable properties of a pod.

    Attributes:
        environment: the variables of the main container; a value that ends with `...` is a prefix.
        mounts: the paths that the operator mounts in the main container.
        searches: the DNS search domains that the operator adds.
    """

    name: str
    labels: dict[str, str]
    environment: dict[str, str]
    mounts: set[str]
    command: list[str] | None
    args: list[str] | None
    restart: str
    searches: list[str] = field(default_factory=list)
    account: str = ""


def host_file(job: dict[str, Any]) -> str:
    """Return the host list."""
    spec, lines = job["spec"], []
    intel = _implementation(spec) != "OpenMPI"
    hosts = [f"{_name(job)}-launcher"] if _launcher_works(job) else []
    hosts += [f"{_name(job)}-worker-{index}" for index in range(workers(job))]
    for host in hosts:
        where = host if _is_old(job) else f"{host}.{_name(job)}.default.svc"
        lines.append(f"{where}:{slots(job)}\n" if intel else f"{where} slots={slots(job)}\n")
    return "".join(lines)


def launcher(job: dict[str, Any]) -> Seen:
    """Return the launcher's pod."""
    environment = {"OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"}
    if _is_old(job):
        agent = {"OpenMPI": "OMPI_MCA_plm_rsh_agent", "Intel": "I_MPI_HYDRA_BOOTSTRAP_EXEC"}[
            _implementation(job["spec"])
        ]
        if agent != "OMPI_MCA_plm_rsh_agent":
            environment = {"I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile"}
        environment[agent] = "/etc/mpi/kubexec.sh"
        labels = {"group-name": "kubeflow.org", "mpi-job-name": _name(job), "mpi-job-role": "launcher"}
        mounts = {"/etc/mpi", "/opt/kube"}
    else:
        environment = {"K_MPI_JOB_ROLE": "launcher", **_ssh_environment(job)}
        labels = {**_labels(job, "launcher"), "job-name": f"{_name(job)}-launcher"}
        if _launcher_works(job):
            labels["training.kubeflow.org/replica-index"] = "0"
        mounts = {"/etc/mpi", job["spec"].get("sshAuthMountPath", "/root/.ssh")}
    if not _launcher_works(job):
        environment |= {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
    main = _main(job, "Launcher")
    account = f"{_name(job)}-launcher" if _is_old(job) else ""
    seen = Seen(f"{_name(job)}-launcher", labels, environment, mounts, main.get("command"), main.get("args"), "")
    seen.account = account
    return seen


def worker(job: dict[str, Any], index: int) -> Seen:
    """Return a worker's pod."""
    main = _main(job, "Worker")
    command, args = main.get("command"), main.get("args")
    if _is_old(job):
        labels = {"group-name": "kubeflow.org", "mpi-job-name": _name(job), "mpi-job-role": "worker"}
        environment, mounts, searches = {}, {"/etc/mpi"}, []
        if not any(command or []):
            command, args = ["sleep"], ["365d"]
    else:
        labels = {**_labels(job, "worker"), "training.kubeflow.org/replica-index": str(index + _launcher_works(job))}
        environment = {"K_MPI_JOB_ROLE": "worker"}
        mounts = {job["spec"].get("sshAuthMountPath", "/root/.ssh")}
        searches = [f"{_name(job)}.default.svc.cluster.local"]
        if not command and not args:
            command = ["/usr/sbin/sshd", "-De"]
    policy = job["spec"]["mpiReplicaSpecs"]["Worker"].get("restartPolicy") or "Never"
    restart = "Never" if policy == "ExitCode" else policy
    return Seen(f"{_name(job)}-worker-{index}", labels, environment, mounts, command, args, restart, searches)


def workers(job: dict[str, Any]) -> int:
    """Return the number of workers' pods."""
    specs = job["spec"]["mpiReplicaSpecs"]
    return int(specs["Worker"]["replicas"]) if "Worker" in specs else 0


def slots(job: dict[str, Any]) -> int:
    """Return the slots of a host."""
    return int(job["spec"].get("slotsPerWorker", 1))


def _ssh_environment(job: dict[str, Any]) -> dict[str, str]:
    arguments = f"{SSH_ARGUMENTS}..."
    if _implementation(job["spec"]) == "Intel":
        return {
            "I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile",
            "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": arguments,
            "I_MPI_PERHOST": str(slots(job)),
        }
    if _implementation(job["spec"]) == "MPICH":
        return {"HYDRA_HOST_FILE": "/etc/mpi/hostfile", "HYDRA_LAUNCH_EXTRA_ARGS": arguments}
    return {
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": arguments,
        "OMPI_MCA_orte_set_default_slots": str(slots(job)),
    }


def _labels(job: dict[str, Any], role: str) -> dict[str, str]:
    prefix = "training.kubeflow.org"
    return {f"{prefix}/operator-name": "mpi-operator", f"{prefix}/job-name": _name(job), f"{prefix}/job-role": role}


def _name(job: dict[str, Any]) -> str:
    return str(job["metadata"]["name"])


def _is_old(job: dict[str, Any]) -> bool:
    return job["apiVersion"] in ("kubeflow.org/v1", "kubeflow.org/v1alpha2")


def _implementation(spec: dict[str, Any]) -> str:
    old = {"open_mpi": "OpenMPI", "intel_mpi": "Intel", "mpich": "MPICH"}
    return str(spec.get("mpiImplementation") or old[spec.get("mpiDistribution", "open_mpi")])


def _launcher_works(job: dict[str, Any]) -> bool:
    if not _is_old(job):
        return job["spec"].get("runLauncherAsWorker") is True
    containers = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    return any("gpu" in name for each in containers for name in each.get("resources", {}).get("limits", {}))


def _main(job: dict[str, Any], role: str) -> dict[str, Any]:
    containers = job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["containers"]
    wanted = job["spec"].get("mainContainer")
    found: dict[str, Any] = next((each for each in containers if each["name"] == wanted), containers[0])
    return found
