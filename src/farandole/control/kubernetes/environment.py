"""Environment variables of containers that users write: the user's values override the operator's.

The user may set a variable in the template's `env`, or in a ConfigMap or Secret that `envFrom` names. The operator does
not read the latter, and a variable in `env` would override them. So for a container with `envFrom`, the operator's
variables are in a ConfigMap of the job, which comes first in `envFrom`: later sources override earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farandole.control.kubernetes import children
from farandole.control.kubernetes.kinds import Kind
from farandole.control.kubernetes.model import Object


def set_defaults(container: dict[str, Any], values: Mapping[str, str], config: str) -> None:
    """Set variables of a container, except those that it sets itself.

    Args:
        container: the container of a pod's spec, which is modified.
        values: variables by name.
        config: name of the ConfigMap that has the same variables, if the container has `envFrom` (see `defaults`).
    """
    if container.get("envFrom"):
        container["envFrom"] = [{"configMapRef": {"name": config}}, *container["envFrom"]]
        return
    given = {item.get("name") for item in container.get("env") or () if isinstance(item, Mapping)}
    ours = [{"name": name, "value": value} for name, value in values.items() if name not in given]
    container["env"] = [*ours, *(container.get("env") or ())]


def defaults(
    kind: Kind, job: Object, container: Object, values: Mapping[str, str], config: str
) -> list[dict[str, Any]]:
    """Return the ConfigMap with a container's variables, if it needs one: see `set_defaults`."""
    if not container.get("envFrom"):
        return []
    metadata = children.metadata_of(kind, job, config)
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(values)}]


def overlay(container: dict[str, Any], values: Mapping[str, str]) -> None:
    """Set variables of a container, overriding its own: the user has set them for the whole job."""
    others = [item for item in container.get("env") or () if item.get("name") not in values]
    container["env"] = [*others, *({"name": name, "value": value} for name, value in sorted(values.items()))]


def values(container: Object) -> dict[str, str]:
    """Return the variables whose values are in the container's `env` itself, by name."""
    items = (item for item in container.get("env") or () if isinstance(item, Mapping))
    return {str(item.get("name")): str(item["value"]) for item in items if item.get("value") is not None}
