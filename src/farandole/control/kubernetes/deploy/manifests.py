"""All manifests as data: the only source of `farandole kubernetes install`, the Kustomize base and the Helm chart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farandole.control.kubernetes import names
from farandole.control.kubernetes.deploy import crds, rights

Manifest = dict[str, Any]

NAMESPACE = "farandole-system"
IMAGE = "farandole/operator"
_RBAC = "rbac.authorization.k8s.io"
PORT = 8080


@dataclass(frozen=True)
class Install:
    """The options of an installation.

    Attributes:
        namespace: the namespace of the operator.
        jobs_namespace: the only namespace whose jobs it serves; "" for all.
        gang_scheduler: as in `model.Options`.
    """

    namespace: str = NAMESPACE
    jobs_namespace: str = ""
    image: str = IMAGE
    replicas: int = 2
    gang_scheduler: str = ""


def kinds() -> list[Manifest]:
    """Return the definitions of the kinds."""
    return [{**item, "metadata": {**item["metadata"], "labels": _labels()}} for item in crds.definitions()]


def all_of(install: Install) -> list[Manifest]:
    """Return everything, in an order in which it can be applied."""
    return [_namespace(install), *kinds(), *access(install), *workload(install)]


def _namespace(install: Install) -> Manifest:
    # The strictest of the Pod Security Standards: the operator needs nothing that it forbids.
    security = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": install.namespace, "labels": {**_labels(), **security}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def access(install: Install) -> list[Manifest]:
    """Return the operator's account and rights."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(install)}
    own = rights.rules("own")
    if install.jobs_namespace:
        roles = _granted(install, "Role", rights.rules("jobs"), install.jobs_namespace, f"{names.OPERATOR}-jobs")
        roles += _granted(install, "ClusterRole", rights.rules("cluster"))
    else:
        roles = _granted(install, "ClusterRole", rights.rules("jobs", "cluster"))
    return [account, *_granted(install, "Role", own, install.namespace), *roles]


def _granted(
    install: Install, kind: str, rules: list[Manifest], namespace: str = "", name: str = names.OPERATOR
) -> list[Manifest]:
    metadata: Manifest = {"name": name, "labels": _labels()}
    if namespace:
        metadata["namespace"] = namespace
    subject = {"kind": "ServiceAccount", "name": names.OPERATOR, "namespace": install.namespace}
    version = f"{_RBAC}/v1"
    return [
        {"apiVersion": version, "kind": kind, "metadata": metadata, "rules": rules},
        {
            "apiVersion": version,
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": name},
            "subjects": [subject],
        },
    ]


def arguments(install: Install) -> list[str]:
    """Return the operator's command line, after the program."""
    words = ["kubernetes", "operator", f"--image={install.image}", f"--port={PORT}"]
    words += [f"--jobs-namespace={install.jobs_namespace}"] if install.jobs_namespace else []
    words += [f"--gang-scheduler={install.gang_scheduler}"] if install.gang_scheduler else []
    return words


def workload(install: Install) -> list[Manifest]:
    """Return the operator's Deployment, and the PodDisruptionBudget that keeps it running while nodes are drained."""
    selector = {"matchLabels": {"app.kubernetes.io/name": names.OPERATOR}}
    pod = {"metadata": {"labels": _labels(), "annotations": _scrape()}, "spec": _pod(install, selector)}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(install),
        "spec": {"replicas": install.replicas, "selector": selector, "template": pod},
    }
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(install),
        "spec": {"maxUnavailable": 1, "selector": selector},
    }
    return [deployment, budget]


def _pod(install: Install, selector: Manifest) -> Manifest:
    def probe(path: str, period: int) -> Manifest:
        return {"httpGet": {"path": path, "port": "http"}, "periodSeconds": period, "timeoutSeconds": 5}

    container = {
        "name": "operator",
        "image": install.image,
        "args": arguments(install),
        "env": [{"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
        "ports": [{"name": "http", "containerPort": PORT}],
        "livenessProbe": probe("/healthz", 20),
        "readinessProbe": probe("/readyz", 5),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    return {
        "serviceAccountName": names.OPERATOR,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [{**spread, "labelSelector": selector}],
        "terminationGracePeriodSeconds": 20,
        "containers": [container],
    }


def _metadata(install: Install) -> Manifest:
    return {"name": names.OPERATOR, "namespace": install.namespace, "labels": _labels()}


def _labels() -> dict[str, str]:
    return {"app.kubernetes.io/name": names.OPERATOR, "app.kubernetes.io/part-of": "farandole"}


def _scrape() -> dict[str, str]:
    return {"prometheus.io/scrape": "true", "prometheus.io/port": str(PORT), "prometheus.io/path": "/metrics"}
