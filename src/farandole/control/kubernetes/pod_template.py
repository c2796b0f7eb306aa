"""Checks users' pod templates, as far as the operator adds to them; the API server checks the rest. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farandole.control.kubernetes.field_reader import FieldReader, shown
from farandole.control.kubernetes.model import Object

_LISTS_OF_POD = (
    "containers",
    "initContainers",
    "volumes",
    "imagePullSecrets",
    "tolerations",
    "topologySpreadConstraints",
)
_LISTS_OF_CONTAINER = ("command", "args", "env", "envFrom", "volumeMounts", "ports")
_PREFERENCES = "preferredDuringSchedulingIgnoredDuringExecution"


def check_pod(reader: FieldReader, pod: Object, where: str) -> None:
    """Record faults because of which nothing can be added to a pod's spec.

    Args:
        reader: collects the faults.
        pod: the spec.
        where: its name in sentences, such as `template.spec`.
    """
    reader.check_lists(pod, _LISTS_OF_POD, where)
    reader.check_lists(reader.mapping(pod, "dnsConfig"), ("searches",), f"{where}.dnsConfig")
    affinity = reader.mapping(pod, "affinity")
    for kind in ("nodeAffinity", "podAffinity"):
        reader.check_lists(reader.mapping(affinity, kind), (_PREFERENCES,), f"{where}.affinity.{kind}")
    _check_fields(reader, pod, ("securityContext",), where)
    for container in _listed(pod.get("containers")):
        name = container.get("name") if isinstance(container, Mapping) else None
        if isinstance(name, str) and name:
            _check_container(reader, container, f"{where}.containers {name}")
        else:
            reader.faults.append(f"{where}.containers: {shown(container)} has no name")


def _check_container(reader: FieldReader, container: Object, where: str) -> None:
    reader.check_lists(container, _LISTS_OF_CONTAINER, where)
    for variable in _listed(container.get("env")):
        if not isinstance(variable, Mapping):
            reader.faults.append(f"{where}.env: {shown(variable)} is not an object")
    _check_fields(reader, container, ("resources", "securityContext"), where)
    resources = container.get("resources")
    if isinstance(resources, Mapping):
        _check_fields(reader, resources, ("limits",), f"{where}.resources")


def _check_fields(reader: FieldReader, source: Object, names: Sequence[str], where: str) -> None:
    """Record which of some fields exist and are not objects."""
    for name in names:
        if source.get(name) is not None and not isinstance(source[name], Mapping):
            reader.faults.append(f"{where}.{name}: {shown(source[name])} is not an object")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
