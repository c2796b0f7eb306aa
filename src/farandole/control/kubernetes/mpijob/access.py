"""The objects through which the pods of an MPIJob reach each other: Service, host lists, keys, and rights."""

from __future__ import annotations

from typing import Any

from farandole.control.kubernetes import children, names
from farandole.control.kubernetes.kinds import MPI_JOB
from farandole.control.kubernetes.model import Object, Wanted
from farandole.control.kubernetes.mpijob import hosts
from farandole.control.kubernetes.mpijob.job_spec import KUBEXEC, MpiJobSpec

SSH_KEYS = "ssh-keys"


def config(job: Object, files: dict[str, str]) -> dict[str, Any]:
    """Return the ConfigMap of the host lists."""
    metadata = _metadata(job, f"{job['metadata']['name']}-config")
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files}


def _metadata(job: Object, name: str) -> dict[str, Any]:
    metadata = children.metadata_of(MPI_JOB, job, name)
    metadata["labels"][names.APP_LABEL] = children.label_value(job["metadata"]["name"])
    return metadata


def around(job: Object, spec: MpiJobSpec, pods: int) -> list[Wanted]:
    """Return the objects that pods need in addition to the host lists: the Service, and keys or rights.

    Args:
        pods: number of worker pods in which the launcher may run commands.
    """
    wanted = [Wanted(_service(job))]
    if spec.remote_shell == KUBEXEC:
        return wanted + [Wanted(item) for item in _rights(job, spec, pods)]
    return [*wanted, Wanted(_keys(job), generate=SSH_KEYS)]


def _service(job: Object) -> dict[str, Any]:
    # The same as mpi-operator's Service.
    name = children.label_value(job["metadata"]["name"])
    selector = {names.TRAINING_OPERATOR_LABEL: names.MPI_OPERATOR, names.TRAINING_JOB_LABEL: name}
    # Names resolve before pods are ready, so that an early launcher does not cache a failure.
    spec = {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": True}
    metadata = _metadata(job, hosts.service_name(job))
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _keys(job: Object) -> dict[str, Any]:
    metadata = _metadata(job, children.secret_name(job, "ssh"))
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/ssh-auth"}


def _rights(job: Object, spec: MpiJobSpec, pods: int) -> list[dict[str, Any]]:
    """Return the launcher's account and its right to run commands, only in the job's own workers.

    An account that the template names must exist already.
    """
    name, account = hosts.launcher_name(job), hosts.launcher_account(job, spec)
    names_of_pods = [hosts.worker_name(job, index) for index in range(pods)]
    group = "rbac.authorization.k8s.io"
    # Without names, a rule would apply to all pods.
    run = [{"apiGroups": [""], "resources": ["pods/exec"], "resourceNames": names_of_pods, "verbs": ["create", "get"]}]
    see = [{"apiGroups": [""], "resources": ["pods"], "resourceNames": names_of_pods, "verbs": ["get"]}]

    def obj(api_version: str, kind: str, **fields: Any) -> dict[str, Any]:
        return {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": _metadata(job, name),
            **fields,
        }

    return [
        *([obj("v1", "ServiceAccount")] if account == name else []),
        obj(f"{group}/v1", "Role", rules=[*see, *run] if names_of_pods else []),
        obj(
            f"{group}/v1",
            "RoleBinding",
            roleRef={"apiGroup": group, "kind": "Role", "name": name},
            subjects=[{"kind": "ServiceAccount", "name": account, "namespace": job["metadata"]["namespace"]}],
        ),
    ]
