"""The objects of a TrainingJob other than pods: name, secret, storage of the launcher's state, and rights.

The launcher pod may only read and change two objects of its own job: the state and the failover state. It writes them
itself, not through the operator, because a state must be stored before the launcher acts on it, and the operator may be
unreachable. Worker pods have no rights at all.
"""

from __future__ import annotations

from typing import Any

from farandole.control.kubernetes import children, names
from farandole.control.kubernetes.kinds import TRAINING_JOB
from farandole.control.kubernetes.model import Object, Wanted
from farandole.control.kubernetes.training_job import own_names
from farandole.control.kubernetes.training_job.job_spec import TrainingJobSpec

JOB_SECRET = "job-secret"
_RBAC = "rbac.authorization.k8s.io"


def around(job: Object, spec: TrainingJobSpec) -> list[Wanted]:
    """Return all these objects."""
    wanted = [
        Wanted(_object(job, "v1", "Secret", own_names.secret(job), type="Opaque"), generate=JOB_SECRET),
        Wanted(_failover(job)),
        Wanted(_object(job, "v1", "ConfigMap", own_names.state(job))),
        Wanted(_service(job)),
        *(Wanted(each) for each in _rights(job)),
    ]
    return [*wanted, Wanted(_network_policy(job))] if spec.network_policy else wanted


def selector(job: Object, role: str = "") -> dict[str, str]:
    """Return the labels of the job's pods, or of those with a role."""
    labels = {names.JOB_LABEL: children.label_value(own_names.job_name(job)), names.KIND_LABEL: TRAINING_JOB.plural}
    return {**labels, names.ROLE_LABEL: role} if role else labels


def _object(job: Object, api_version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
    metadata = children.metadata_of(TRAINING_JOB, job, name)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def _failover(job: Object) -> dict[str, Any]:
    state = _object(job, "v1", "ConfigMap", own_names.failover(job))
    # Without the operator's label: it need not know of every change.
    del state["metadata"]["labels"][names.MANAGED_BY_LABEL]
    return state


def _service(job: Object) -> dict[str, Any]:
    # Headless: no proxy has to learn of a new launcher, and workers that reach an old one notice.
    spec = {
        "clusterIP": "None",
        "selector": selector(job, names.LAUNCHER),
        "publishNotReadyAddresses": True,
        "ports": [{"name": "dial", "port": own_names.DIAL_PORT}],
    }
    return _object(job, "v1", "Service", own_names.service(job), spec=spec)


def _rights(job: Object) -> list[dict[str, Any]]:
    name, namespace = own_names.account(job), job["metadata"]["namespace"]
    verbs = ["get", "patch"]
    own = [own_names.state(job), own_names.failover(job)]
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": own, "verbs": verbs}]
    role = {"apiGroup": _RBAC, "kind": "Role", "name": name}
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
    return [
        _object(job, "v1", "ServiceAccount", name, automountServiceAccountToken=False),
        _object(job, f"{_RBAC}/v1", "Role", name, rules=rules),
        _object(job, f"{_RBAC}/v1", "RoleBinding", name, roleRef=role, subjects=subjects),
    ]


def _network_policy(job: Object) -> dict[str, Any]:
    """Return the policy that lets only the job's own pods connect to its pods."""
    spec = {
        "podSelector": {"matchLabels": selector(job)},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": selector(job)}}]}],
    }
    return _object(job, "networking.k8s.io/v1", "NetworkPolicy", own_names.job_name(job), spec=spec)
