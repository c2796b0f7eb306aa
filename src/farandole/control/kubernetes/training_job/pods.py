"""The pods of a TrainingJob: one launcher pod, and worker pods whose agents dial it."""

from __future__ import annotations

import copy
import json
import posixpath
from typing import Any

import msgspec

from farandole.base.settings.table import SETTINGS
from farandole.control.jobs.spec import to_dict
from farandole.control.kubernetes import children, environment, gang, names, resources
from farandole.control.kubernetes.kinds import TRAINING_JOB
from farandole.control.kubernetes.model import Object, Options
from farandole.control.kubernetes.training_job import hints, own_names
from farandole.control.kubernetes.training_job.job_spec import CLAIM, TrainingJobSpec

_SECRET_VOLUME = "farandole-secret"
_USER = 1000
# Seconds: a launcher ends at once, but not before it has written the facts that its successor needs.
LAUNCHER_GRACE_SECONDS = 30
# Seconds that a worker pod has in addition to the time that its workers have to leave.
_MORE_GRACE = 15
# The home directory of workers, whose user has none in most images.
_ENVIRONMENT = {"HOME": "/tmp"}
# Variables of workers that their launcher also uses.
_OF_LAUNCHER = SETTINGS["start_timeout"].variables
_HARDENED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
# Nodes that may be reclaimed at any moment have one of these taints.
_SPOT_TAINTS = (
    "cloud.google.com/gke-spot",
    "cloud.google.com/gke-preemptible",
    "kubernetes.azure.com/scalesetpriority",
    "eks.amazonaws.com/capacityType",
    "karpenter.sh/capacity-type",
)


def launcher(job: Object, spec: TrainingJobSpec, options: Options, index: int, attempt: int) -> dict[str, Any]:
    """Return a launcher pod.

    The kubelet restarts its program after a failure; a lost pod, and one whose restart the kubelet delays although it
    was only killed, is replaced by one with the next index.
    """
    name = own_names.pod(job, names.LAUNCHER, index)
    # The kubelet turns `$$` into `$`, and replaces `$(NAME)`: JSON can do without the character.
    described = json.dumps(description(job, spec, attempt), sort_keys=True).replace("$", "\\u0024")
    env = [
        {"name": "FARANDOLE_TRAINING_JOB", "value": described},
        {"name": "FARANDOLE_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "HOME", "value": "/tmp"},
    ]
    container = {
        "name": names.LAUNCHER,
        "image": options.image,
        "command": ["python3", "-m", "farandole.control.kubernetes.launcher_pod"],
        "env": env,
        "ports": [{"name": "dial", "containerPort": own_names.DIAL_PORT}],
        "readinessProbe": {"tcpSocket": {"port": own_names.DIAL_PORT}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {**_HARDENED, "readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    body: dict[str, Any] = {
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "restartPolicy": "OnFailure",
        "serviceAccountName": own_names.account(job),
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": LAUNCHER_GRACE_SECONDS,
        "tolerations": _when_nodes_are_lost(spec),
    }
    _secure(body)
    _mount_secret(job, body, container)
    if spec.priority_class:
        body["priorityClassName"] = spec.priority_class
    metadata = _metadata(job, name, names.LAUNCHER, index)
    metadata["labels"][names.ATTEMPT_LABEL] = str(attempt)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}
    gang.decorate(pod, job, options)
    return pod


def worker(job: Object, spec: TrainingJobSpec, options: Options, index: int) -> dict[str, Any]:
    """Return a worker pod: the user's template or image, in which our agent is process 1."""
    name = own_names.pod(job, names.WORKER, index)
    body: dict[str, Any] = copy.deepcopy(dict(spec.pod))
    containers = body["containers"] = body.get("containers") or [{"name": names.WORKER}]
    main = _main_of(containers)
    main.setdefault("image", spec.job.image)
    # The last output of a pod that fails before it runs a worker is then in its status, and so in the job's.
    main.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    address = f"{own_names.service(job)}.{job['metadata']['namespace']}:{own_names.DIAL_PORT}"
    main["command"] = [spec.python, "-m", "farandole.control.agent.dial", "--launcher", address]
    main["args"] = ["--secret-file", f"{own_names.SECRET_FOLDER}/{own_names.SECRET_KEY}", "--name", name]
    main["args"] += ["--slots", str(spec.slots), "--patience", f"{spec.absence:g}"]
    if spec.job.resources:
        main.setdefault("resources", {"requests": dict(spec.job.resources), "limits": dict(spec.job.resources)})
    environment.overlay(main, spec.job.environment)
    environment.set_defaults(main, _ENVIRONMENT, _environment_name(job))
    for container in containers:
        container["securityContext"] = {**_HARDENED, **(container.get("securityContext") or {})}
    _secure(body)
    _mount_secret(job, body, main)
    _mount_code(spec, body, main)
    _mount_checkpoints(spec, body, main)
    body["restartPolicy"] = "Never"
    body["hostname"] = name
    body["subdomain"] = own_names.service(job)
    body.setdefault("automountServiceAccountToken", False)
    body.setdefault("terminationGracePeriodSeconds", int(spec.job.grace) + _MORE_GRACE)
    children.append(body, "tolerations", [*_when_nodes_are_lost(spec), *(_spot() if spec.tolerate_spot else [])])
    if spec.priority_class:
        body.setdefault("priorityClassName", spec.priority_class)
    metadata = _metadata(job, name, names.WORKER, index)
    hints.hint(hints.labels_of(metadata["labels"]), spec, body)
    metadata["labels"] = {**spec.labels, **metadata["labels"]}
    metadata["annotations"] = dict(spec.annotations)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}
    gang.decorate(pod, job, options)
    return pod


def environments(job: Object, spec: TrainingJobSpec) -> list[dict[str, Any]]:
    """Return the ConfigMap of worker pods' variables, if they need one (see `environment.defaults`)."""
    containers = spec.pod.get("containers") or [{"name": names.WORKER}]
    return environment.defaults(TRAINING_JOB, job, _main_of(containers), _ENVIRONMENT, _environment_name(job))


def _environment_name(job: Object) -> str:
    return f"{own_names.job_name(job)}-worker-env"


def pod_group(job: Object, spec: TrainingJobSpec, options: Options) -> dict[str, Any] | None:
    """Return the PodGroup with which the launcher and the minimum number of workers start together; None without one.

    Further workers are members as well, and start when nodes have room for them.
    """
    if not options.gang_scheduler:
        return None
    one = launcher(job, spec, options, 0, 0)["spec"]
    needed = resources.of_pods([(1, one), (spec.least_pods, worker(job, spec, options, 0)["spec"])])
    roles = {names.LAUNCHER: 1, names.WORKER: spec.least_pods}
    told = gang.Gang(1 + spec.least_pods, roles, needed, priority_class=spec.priority_class)
    return gang.pod_group(TRAINING_JOB, job, told, options)


def description(job: Object, spec: TrainingJobSpec, attempt: int) -> dict[str, Any]:
    """Return the description from which the launcher starts the job."""
    containers = spec.pod.get("containers")
    variables = {**environment.values(_main_of(containers) if containers else {}), **spec.job.environment}
    # The worker pods have the job's variables and resources; the launcher needs only the variables that it uses.
    seen = msgspec.structs.replace(
        spec.job,
        environment={name: variables[name] for name in _OF_LAUNCHER if name in variables},
        resources={},
        options={},
        checkpoint=checkpoint_folder(spec),
    )
    return {
        "name": own_names.job_name(job),
        "namespace": job["metadata"]["namespace"],
        "attempt": attempt,
        "job": to_dict(seen),
        "directory": directory(spec),
        "absence": spec.absence,
        "state": own_names.state(job),
        "failover": own_names.failover(job),
        "port": own_names.DIAL_PORT,
        "secret": f"{own_names.SECRET_FOLDER}/{own_names.SECRET_KEY}",
    }


def directory(spec: TrainingJobSpec) -> str:
    """Return the working directory of workers."""
    found = spec.job.working_directory
    if spec.ship:
        return posixpath.join(own_names.CODE_FOLDER, found)
    containers = spec.pod.get("containers")
    return found or str((_main_of(containers).get("workingDir") if containers else "") or "/")


def _main_of(containers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the container in which workers run; others are the user's."""
    return next((each for each in containers if each["name"] == names.WORKER), containers[0])


def checkpoint_folder(spec: TrainingJobSpec) -> str:
    """Return the path at which workers write checkpoints."""
    place = spec.job.checkpoint
    if not place.startswith(CLAIM):
        return place
    _, _, below = place.removeprefix(CLAIM).partition("/")
    return posixpath.join(own_names.CHECKPOINT_FOLDER, below)


def _metadata(job: Object, name: str, role: str, index: int) -> dict[str, Any]:
    metadata = children.metadata_of(TRAINING_JOB, job, name)
    metadata["labels"] = {**metadata["labels"], names.ROLE_LABEL: role, names.INDEX_LABEL: str(index)}
    return metadata


def _secure(body: dict[str, Any]) -> None:
    """Make a pod run as an ordinary user, unless its template sets something else."""
    ours: dict[str, Any] = {
        "runAsNonRoot": True,
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "fsGroup": _USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    theirs = dict(body.get("securityContext") or {})
    if "runAsUser" in theirs:
        # A template that asks for root gets root.
        ours["runAsNonRoot"] = theirs["runAsUser"] != 0
    body["securityContext"] = {**ours, **theirs}


def _mount_secret(job: Object, body: dict[str, Any], container: dict[str, Any]) -> None:
    source = {"secret": {"secretName": own_names.secret(job), "defaultMode": 0o440}}
    children.mount(body, container, _SECRET_VOLUME, own_names.SECRET_FOLDER, source, read_only=True)


def _mount_code(spec: TrainingJobSpec, body: dict[str, Any], container: dict[str, Any]) -> None:
    if not spec.ship:
        return
    # A ConfigMap does not say which of its files are programs: all are executable.
    source: dict[str, Any] = {"name": spec.ship, "defaultMode": 0o555}
    if spec.ship_items:
        source["items"] = [dict(item) for item in spec.ship_items]
    children.mount(body, container, "farandole-code", own_names.CODE_FOLDER, {"configMap": source}, read_only=True)


def _mount_checkpoints(spec: TrainingJobSpec, body: dict[str, Any], container: dict[str, Any]) -> None:
    if not spec.job.checkpoint.startswith(CLAIM):
        return
    claim, _, _ = spec.job.checkpoint.removeprefix(CLAIM).partition("/")
    source = {"persistentVolumeClaim": {"claimName": claim}}
    children.mount(body, container, "farandole-checkpoints", own_names.CHECKPOINT_FOLDER, source)


def _when_nodes_are_lost(spec: TrainingJobSpec) -> list[dict[str, Any]]:
    """Return tolerations with which pods of a silent node are deleted soon; by default it takes 5 minutes."""
    return [
        {
            "key": f"node.kubernetes.io/{taint}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": spec.node_loss,
        }
        for taint in ("not-ready", "unreachable")
    ]


def _spot() -> list[dict[str, Any]]:
    return [{"key": taint, "operator": "Exists"} for taint in _SPOT_TAINTS]
