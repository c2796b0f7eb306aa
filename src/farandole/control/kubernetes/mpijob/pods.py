"""The pods of an MPIJob: the user's templates, with additions so that pods find each other."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from farandole.control.kubernetes import children, environment, gang, names
from farandole.control.kubernetes.kinds import MPI_JOB
from farandole.control.kubernetes.model import Object, Options
from farandole.control.kubernetes.mpijob import hosts
from farandole.control.kubernetes.mpijob.job_spec import INTEL, KUBEXEC, MPICH, OPEN_MPI, SSH, MpiJobSpec, Replica

CONFIG_VOLUME, SSH_VOLUME, KUBECTL_VOLUME = "mpi-job-config", "ssh-auth", "mpi-job-kubectl"
PRIVATE_KEY, PUBLIC_KEY = "ssh-privatekey", "ssh-publickey"

# A launcher may start before a worker's sshd listens. Host keys are those of the image, and known to everyone who has
# the image: the authentication is by the job's own key, which only its pods have.
_SSH_OPTIONS = "-o ConnectionAttempts=10 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
# As the first process of a container, sleep alone would not end on SIGTERM, and the pod only after its grace period.
_WAIT = ["/bin/sh", "-c", "trap 'exit 143' TERM INT; sleep 365d & wait"]
_HOST_FILE = f"{hosts.FOLDER}/{hosts.HOST_FILE}"

# The variables of each implementation for its host list, its remote shell and that shell's options, and a host's slots.
# Open MPI 5 ignores the names of Open MPI 4, and would start everything on the launcher's host without a warning.
_ENVIRONMENTS: dict[str, dict[str, tuple[str, ...]]] = {
    OPEN_MPI: {
        "hosts": ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"),
        "arguments": ("OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm_ssh_args"),
        "agent": ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"),
        "slots": ("OMPI_MCA_orte_set_default_slots", "PRTE_MCA_prte_set_default_slots"),
        # Not for Open MPI 5: it always passes on whole names, and would not recognize the launcher by its own name.
        "whole names": ("OMPI_MCA_orte_keep_fqdn_hostnames",),
    },
    INTEL: {
        "hosts": ("I_MPI_HYDRA_HOST_FILE",),
        "arguments": ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",),
        "agent": ("I_MPI_HYDRA_BOOTSTRAP_EXEC",),
        "launcher": ("I_MPI_HYDRA_BOOTSTRAP",),
        "slots": ("I_MPI_PERHOST",),
    },
    MPICH: {
        "hosts": ("HYDRA_HOST_FILE",),
        "arguments": ("HYDRA_LAUNCH_EXTRA_ARGS",),
        "agent": ("HYDRA_LAUNCHER_EXEC",),
        "launcher": ("HYDRA_LAUNCHER",),
    },
}
_WORKER_ENVIRONMENT = {"K_MPI_JOB_ROLE": names.WORKER}
# Hydra calls any other program than ssh in the same way: with the host first, and without options before it.
_PLAIN_LAUNCHER = "rsh"


def launcher_pod_name(job: Object, attempt: int) -> str:
    """Return the name of the launcher's pod: the usual name for the first one, with a number for later ones."""
    name = hosts.launcher_name(job)
    return name if attempt == 0 else f"{name}-{attempt}"


def launcher(job: Object, spec: MpiJobSpec, options: Options, attempt: int, hosts_digest: str) -> dict[str, Any]:
    """Return the launcher's pod.

    The kubelet never restarts it: the operator starts the next attempt once the workers are ready.
    """
    pod = _pod(job, spec, options, spec.launcher, names.LAUNCHER, launcher_pod_name(job, attempt))
    labels = pod["metadata"]["labels"]
    labels[names.ATTEMPT_LABEL] = str(attempt)
    if spec.launcher_as_worker:
        labels[names.TRAINING_INDEX_LABEL] = "0"
    # The labels of the pods of mpi-operator's batch Job: with these users find the launcher's output.
    labels |= dict.fromkeys(names.BATCH_JOB_LABELS, children.label_value(hosts.launcher_name(job)))
    pod["metadata"]["annotations"][names.HOSTS_ANNOTATION] = hosts_digest
    pod["spec"]["hostname"] = hosts.launcher_name(job)
    pod["spec"]["restartPolicy"] = "Never"
    main = _main_container(pod["spec"], spec)
    environment.set_defaults(main, _launcher_environment(spec), _environment_name(job, names.LAUNCHER))
    if spec.remote_shell == KUBEXEC:
        pod["spec"]["serviceAccountName"] = hosts.launcher_account(job, spec)
        if options.deliver_kubectl:
            _deliver_kubectl(pod["spec"], main, options)
    return pod


def worker(job: Object, spec: MpiJobSpec, options: Options, index: int) -> dict[str, Any]:
    """Return a worker's pod."""
    name = hosts.worker_name(job, index)
    pod = _pod(job, spec, options, spec.worker, names.WORKER, name)
    labels = pod["metadata"]["labels"]
    labels[names.INDEX_LABEL] = str(index)
    labels[names.TRAINING_INDEX_LABEL] = str(index + spec.launcher_as_worker)
    pod["spec"]["hostname"] = name
    policy = spec.worker.restart_policy
    pod["spec"]["restartPolicy"] = "Never" if policy == "ExitCode" else policy
    main = _main_container(pod["spec"], spec)
    environment.set_defaults(main, _WORKER_ENVIRONMENT, _environment_name(job, names.WORKER))
    # Published examples have a command of one empty word, which means no command.
    if not any(main.get("command") or ()):
        main.pop("command", None)
        if spec.remote_shell == KUBEXEC:
            main["command"] = _WAIT
            main.pop("args", None)
        elif not main.get("args"):
            main["command"] = ["/usr/sbin/sshd", "-De"]
    return pod


def _pod(job: Object, spec: MpiJobSpec, options: Options, replica: Replica, role: str, name: str) -> dict[str, Any]:
    metadata = children.metadata_of(MPI_JOB, job, name)
    metadata["labels"] = {**replica.labels, **metadata["labels"], **_labels(job, role), names.ROLE_LABEL: role}
    metadata["annotations"] = dict(replica.annotations)
    body: dict[str, Any] = copy.deepcopy(dict(replica.pod))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}
    # In the domain of the job's Service, where other pods find it.
    body["subdomain"] = hosts.service_name(job)
    if body.get("hostNetwork"):
        body.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    _find_short_names(job, body, options)
    main = _main_container(body, spec)
    # The last output of a failing pod is then in its status, and so in the job's.
    main.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    children.mount(body, main, CONFIG_VOLUME, hosts.FOLDER, _config_volume(job, spec))
    if spec.remote_shell == SSH:
        children.mount(body, main, SSH_VOLUME, spec.ssh_path, _ssh_volume(job, spec, body, main))
    gang.decorate(pod, job, options)
    return pod


def _main_container(body: Object, spec: MpiJobSpec) -> dict[str, Any]:
    """Return the container that is part of the job; others, such as sidecars, are not changed."""
    containers: list[dict[str, Any]] = body["containers"]
    return next((item for item in containers if item["name"] == spec.main_container), containers[0])


def _labels(job: Object, role: str) -> dict[str, str]:
    name = children.label_value(job["metadata"]["name"])
    labels = {
        names.TRAINING_OPERATOR_LABEL: names.MPI_OPERATOR,
        names.TRAINING_JOB_LABEL: name,
        names.TRAINING_ROLE_LABEL: role,
    }
    for keys in (names.MPI_V1_LABELS, names.MPI_V1ALPHA2_LABELS):
        labels |= dict(zip(keys, (names.MPI_GROUP, name, role), strict=True))
    return labels


def _find_short_names(job: Object, body: dict[str, Any], options: Options) -> None:
    """Let pods find each other by host name alone: Hydra's proxies look for the launcher that way."""
    config = dict(body.get("dnsConfig") or {})
    domain = f"{hosts.service_name(job)}.{job['metadata']['namespace']}.svc.{options.cluster_domain}"
    children.append(config, "searches", [domain])
    body["dnsConfig"] = config


def environments(job: Object, spec: MpiJobSpec) -> list[dict[str, Any]]:
    """Return the ConfigMaps that pods need for their variables (see `environment.defaults`)."""
    ours = {
        names.LAUNCHER: (spec.launcher, _launcher_environment(spec)),
        names.WORKER: (spec.worker, _WORKER_ENVIRONMENT),
    }
    return [
        config
        for role, (replica, values) in ours.items()
        for config in environment.defaults(
            MPI_JOB, job, _main_container(replica.pod, spec), values, _environment_name(job, role)
        )
    ]


def _environment_name(job: Object, role: str) -> str:
    return f"{job['metadata']['name']}-{role}-env"


def _launcher_environment(spec: MpiJobSpec) -> dict[str, str]:
    told = {"hosts": _HOST_FILE}
    if spec.remote_shell == KUBEXEC:
        told |= {"agent": f"{hosts.FOLDER}/{hosts.KUBEXEC_SCRIPT}", "launcher": _PLAIN_LAUNCHER}
    else:
        told |= {"arguments": _SSH_OPTIONS, "slots": str(spec.slots), "whole names": "true"}
    variables = _ENVIRONMENTS[spec.implementation]
    values = {"K_MPI_JOB_ROLE": names.LAUNCHER}
    values |= {name: value for what, value in told.items() for name in variables.get(what, ())}
    if not (spec.launcher_as_worker or spec.launcher.asks_for_gpu):
        # Images for GPUs request all GPUs of a node, but a launcher that does not train needs none.
        values |= {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
    return values


def _config_volume(job: Object, spec: MpiJobSpec) -> dict[str, Any]:
    modes = {hosts.HOST_FILE: 0o444, hosts.DISCOVERY: 0o555}
    if spec.remote_shell == KUBEXEC:
        # Open MPI looks for the remote shell on workers as well, so they also get the volume.
        modes[hosts.KUBEXEC_SCRIPT] = 0o555
    items = [{"key": file, "path": file, "mode": mode} for file, mode in modes.items()]
    return {"configMap": {"name": f"{job['metadata']['name']}-config", "items": items}}


def _ssh_volume(job: Object, spec: MpiJobSpec, body: Object, main: Object) -> dict[str, Any]:
    items = [
        {"key": PRIVATE_KEY, "path": "id_rsa"},
        {"key": PUBLIC_KEY, "path": "id_rsa.pub"},
        {"key": PUBLIC_KEY, "path": "authorized_keys"},
    ]
    secret: dict[str, Any] = {"secretName": children.secret_name(job, "ssh"), "items": items}
    if _user(body, main) == 0 and spec.ssh_path.startswith("/root/"):
        # ssh refuses a key of its own user that others may read. Files of a volume belong to root, so ssh run by
        # another user accepts them, and that user must be able to read them.
        secret["defaultMode"] = 0o600
    return {"secret": secret}


def _user(body: Object, main: Object) -> int:
    for source in (main, body):
        context = source.get("securityContext")
        user = context.get("runAsUser") if isinstance(context, Mapping) else None
        if isinstance(user, int):
            return user
    return 0


def _deliver_kubectl(body: dict[str, Any], main: dict[str, Any], options: Options) -> None:
    path = f"{hosts.KUBECTL_FOLDER}/kubectl"
    children.mount(body, main, KUBECTL_VOLUME, hosts.KUBECTL_FOLDER, {"emptyDir": {}})
    small = {"cpu": "100m", "memory": "128Mi"}
    deliver = {
        "name": "kubectl-delivery",
        "image": options.image,
        "command": ["cp", "/usr/local/bin/kubectl", path],
        "volumeMounts": [{"name": KUBECTL_VOLUME, "mountPath": hosts.KUBECTL_FOLDER}],
        "resources": {"requests": small, "limits": small},
    }
    children.append(body, "initContainers", [deliver])
