"""Preferred nodes of worker pods, which the scheduler respects if it can. They never prevent a pod from running."""

from __future__ import annotations

from typing import Any

from farandole.control.kubernetes import names
from farandole.control.kubernetes.model import Object
from farandole.control.kubernetes.training_job.job_spec import TrainingJobSpec

_WEIGHT = 100
_WISH = "preferredDuringSchedulingIgnoredDuringExecution"


def hint(labels: Object, spec: TrainingJobSpec, body: dict[str, Any]) -> None:
    """Add the preferences of a spec to those of the pod's template.

    Args:
        labels: the labels of all worker pods of the job.
        spec: the spec of the job.
        body: the pod's spec, which is modified.
    """
    selector = {"matchLabels": dict(labels)}
    if spec.spread:
        constraint = {
            "topologyKey": spec.spread,
            "maxSkew": 1,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": selector,
        }
        body["topologySpreadConstraints"] = [*(body.get("topologySpreadConstraints") or ()), constraint]
    if spec.together:
        term = {"labelSelector": selector, "topologyKey": spec.together}
        _wish(body, "podAffinity", {"weight": _WEIGHT, "podAffinityTerm": term})
    if spec.nodes:
        theirs = [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(spec.nodes)}]
        _wish(body, "nodeAffinity", {"weight": _WEIGHT, "preference": {"matchExpressions": theirs}})
    if spec.preferred_nodes:
        matching = [
            {"key": name, "operator": "In", "values": [value]} for name, value in sorted(spec.preferred_nodes.items())
        ]
        _wish(body, "nodeAffinity", {"weight": _WEIGHT, "preference": {"matchExpressions": matching}})


def labels_of(job_labels: Object) -> dict[str, str]:
    """Return the labels that only the job's worker pods have."""
    return {name: job_labels[name] for name in (names.JOB_LABEL, names.KIND_LABEL, names.ROLE_LABEL)}


def _wish(body: dict[str, Any], kind: str, wish: dict[str, Any]) -> None:
    affinity = body["affinity"] = dict(body.get("affinity") or {})
    terms = affinity[kind] = dict(affinity.get(kind) or {})
    terms[_WISH] = [*(terms.get(_WISH) or ()), wish]
