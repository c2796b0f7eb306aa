"""Parses the spec of an MPIJob of any version into one form.

The versions have the same fields in different places: policies at the top (v1alpha2, v1) or in `runPolicy` (v2beta1),
`mpiDistribution` or `mpiImplementation`. One schema has all these fields, and each is read from all of its places.
Only `remoteShell` depends on the version itself: the schemas of the versions give it different defaults.

The input may be anything: the result is a spec or a list of sentences, never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farandole.control.kubernetes.field_reader import FieldReader
from farandole.control.kubernetes.model import Object
from farandole.control.kubernetes.pod_template import check_pod

SSH, KUBEXEC = "ssh", "kubexec"
OPEN_MPI, INTEL, MPICH = "OpenMPI", "Intel", "MPICH"
AT_STARTUP, WAIT_FOR_WORKERS = "AtStartup", "WaitForWorkersReady"

# In the order in which they are tried: the way in which a version's launcher reaches its workers.
_SHELL_OF_VERSION = {"v1alpha2": KUBEXEC, "v1": KUBEXEC, "v2beta1": SSH}
_DISTRIBUTIONS = {"open_mpi": OPEN_MPI, "intel_mpi": INTEL, "mpich": MPICH}
_RESTART_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")
_CLEAN_POLICIES = ("None", "Running", "All")
DEFAULT_BACKOFF_LIMIT = 6
MOST_WORKERS = 10_000
# Pods are named JOB-worker-N and JOB-launcher, and a pod's name is its host name here.
LONGEST_HOST_NAME = 63


@dataclass(frozen=True)
class Replica:
    """Pods of one role."""

    replicas: int
    restart_policy: str
    labels: Object
    annotations: Object
    pod: Object

    @property
    def asks_for_gpu(self) -> bool:
        """Return whether its containers have a limit for GPUs."""
        limits = [_map(_map(item.get("resources")).get("limits")) for item in self.pod["containers"]]
        return any("gpu" in str(name) for names in limits for name in names)


@dataclass(frozen=True)
class Scheduling:
    """The options for a gang scheduler."""

    min_available: int | None = None
    queue: str = ""
    min_resources: Object | None = None
    priority_class: str = ""
    timeout_seconds: int | None = None


@dataclass(frozen=True)
class MpiJobSpec:
    """An MPIJob's spec, in the same form for all versions."""

    launcher: Replica
    worker: Replica
    slots: int = 1
    remote_shell: str = SSH
    implementation: str = OPEN_MPI
    ssh_path: str = "/root/.ssh"
    main_container: str = ""
    launcher_as_worker: bool = False
    launcher_creation: str = ""
    clean: str = "None"
    backoff_limit: int = DEFAULT_BACKOFF_LIMIT
    deadline: int | None = None
    ttl: int | None = None
    suspend: bool = False
    scheduling: Scheduling = field(default_factory=Scheduling)

    @property
    def workers(self) -> int:
        """Number of worker pods, without the launcher."""
        return self.worker.replicas

    @property
    def all_slots(self) -> int:
        """Number of slots of all hosts; a launcher without workers has slots itself."""
        hosts = self.workers + (self.launcher_as_worker or not self.workers)
        return self.slots * hosts


def read(job: Object) -> tuple[MpiJobSpec | None, list[str]]:
    """Return a job's spec, or None and sentences about its faults."""
    reader = FieldReader()
    spec = reader.mapping(job, "spec")
    policy = reader.mapping(spec, "runPolicy")
    # The run policy overrides the fields at the top.
    policies = {**spec, **{key: value for key, value in policy.items() if value is not None}}
    replicas = reader.mapping(spec, "mpiReplicaSpecs")
    launcher = _replica(reader, replicas, "Launcher")
    worker = _replica(reader, replicas, "Worker")
    shell = reader.choice(spec, "remoteShell", (SSH, KUBEXEC), _SHELL_OF_VERSION.get(_version(job), SSH))
    reader.flag(spec, "runLauncherAsWorker")
    if launcher is not None and worker is None and not reader.faults:
        # A launcher without workers has slots itself, and its mpirun starts all processes locally.
        worker = Replica(0, "Never", {}, {}, launcher.pod)
    read_spec = _policies(reader, spec, policies, launcher, worker, shell)
    _check_name(reader, job, worker.replicas if worker is not None else 0)
    if reader.faults or read_spec is None:
        return None, reader.faults or ["mpiReplicaSpecs has no Launcher"]
    return read_spec, []


def _policies(
    reader: FieldReader, spec: Object, policies: Object, launcher: Replica | None, worker: Replica | None, shell: str
) -> MpiJobSpec | None:
    implementation = reader.choice(spec, "mpiImplementation", (OPEN_MPI, INTEL, MPICH), "")
    distribution = reader.choice(spec, "mpiDistribution", tuple(_DISTRIBUTIONS), "open_mpi")
    slots = reader.integer(spec, "slotsPerWorker", 1, least=1) or 1
    if launcher is None or worker is None:
        return None
    # v1alpha2 and v1 have no runLauncherAsWorker: there, a launcher with GPUs is one.
    as_worker = spec.get("runLauncherAsWorker") is True or (shell == KUBEXEC and launcher.asks_for_gpu)
    creation = AT_STARTUP if spec.get("launcherCreationPolicy") == AT_STARTUP else ""
    if reader.flag(spec, "waitForWorkers"):
        creation = WAIT_FOR_WORKERS
    return MpiJobSpec(
        launcher=launcher,
        worker=worker,
        slots=slots,
        remote_shell=shell,
        implementation=implementation or _DISTRIBUTIONS[distribution],
        ssh_path=reader.text(spec, "sshAuthMountPath", "/root/.ssh"),
        main_container=_main_container(reader, spec, worker),
        launcher_as_worker=as_worker,
        launcher_creation=reader.choice(spec, "launcherCreationPolicy", (AT_STARTUP, WAIT_FOR_WORKERS), creation),
        clean=reader.choice(policies, "cleanPodPolicy", _CLEAN_POLICIES, "None"),
        backoff_limit=reader.integer(policies, "backoffLimit", DEFAULT_BACKOFF_LIMIT) or 0,
        deadline=reader.integer(policies, "activeDeadlineSeconds", None, 1, 2**63 - 1),
        ttl=reader.integer(policies, "ttlSecondsAfterFinished", None),
        suspend=reader.flag(policies, "suspend"),
        scheduling=_scheduling(reader, policies),
    )


def _main_container(reader: FieldReader, spec: Object, worker: Replica) -> str:
    name = reader.text(spec, "mainContainer")
    names = [container["name"] for container in worker.pod["containers"]]
    if name and name not in names:
        reader.faults.append(f"mainContainer is {name}, and a worker's containers are {', '.join(names)}")
    return name


def _scheduling(reader: FieldReader, policies: Object) -> Scheduling:
    policy = reader.mapping(policies, "schedulingPolicy")
    resources = reader.mapping(policy, "minResources")
    return Scheduling(
        min_available=reader.integer(policy, "minAvailable", None),
        queue=reader.text(policy, "queue"),
        min_resources=dict(resources) if resources else None,
        priority_class=reader.text(policy, "priorityClass"),
        timeout_seconds=reader.integer(policy, "scheduleTimeoutSeconds", None),
    )


def _replica(reader: FieldReader, replicas: Object, role: str) -> Replica | None:
    if replicas.get(role) is None:
        if role == "Launcher":
            reader.faults.append("mpiReplicaSpecs has no Launcher")
        return None
    spec = reader.mapping(replicas, role)
    count = reader.integer(spec, "replicas", 1)
    if role == "Launcher" and count != 1:
        reader.faults.append(f"Launcher has {count} replicas, and must have 1")
    if count is not None and count > MOST_WORKERS:
        reader.faults.append(f"{role} has {count} replicas, and may have {MOST_WORKERS}")
    template = reader.mapping(spec, "template")
    metadata = reader.mapping(template, "metadata")
    pod = reader.mapping(template, "spec")
    if not _usable(reader, role, pod):
        return None
    return Replica(
        replicas=count or 0,
        restart_policy=reader.choice(spec, "restartPolicy", _RESTART_POLICIES, "Never"),
        labels=reader.texts(metadata, "labels", "template.metadata."),
        annotations=reader.texts(metadata, "annotations", "template.metadata."),
        pod=pod,
    )


def _usable(reader: FieldReader, role: str, pod: Object) -> bool:
    """Return whether a pod's spec has the right structure for additions; the API server checks the rest."""
    faults = len(reader.faults)
    check_pod(reader, pod, f"{role}.template.spec")
    if not pod.get("containers") and faults == len(reader.faults):
        reader.faults.append(f"{role}'s pod has no containers")
    return faults == len(reader.faults)


def _check_name(reader: FieldReader, job: Object, workers: int) -> None:
    name = str(_map(job.get("metadata")).get("name"))
    ending = max("-launcher", f"-worker-{max(workers, 1) - 1}", key=len)
    if len(name) + len(ending) > LONGEST_HOST_NAME:
        reader.faults.append(
            f"the name {name} has {len(name)} characters, and may have {LONGEST_HOST_NAME - len(ending)}: "
            f"the host names of its pods, such as {ending[1:]}, have its name before them"
        )
    elif "." in name:
        reader.faults.append(f"the name {name} has a dot, which the host names of its pods must not have")


def _version(job: Object) -> str:
    return str(job.get("apiVersion") or "").rpartition("/")[2]


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
