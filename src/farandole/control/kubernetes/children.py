"""Metadata of the objects that the operator creates for a job."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from farandole.control.kubernetes import names
from farandole.control.kubernetes.kinds import Kind
from farandole.control.kubernetes.model import Object


def owner(kind: Kind, job: Object) -> dict[str, Any]:
    """Return the owner reference, because of which the cluster deletes a child with its job."""
    metadata = job["metadata"]
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def metadata_of(kind: Kind, job: Object, name: str) -> dict[str, Any]:
    """Return the common metadata of all children; callers add their own labels and annotations."""
    metadata = job["metadata"]
    return {
        "name": name,
        "namespace": metadata["namespace"],
        "labels": {
            names.MANAGED_BY_LABEL: names.OPERATOR,
            names.JOB_LABEL: label_value(metadata["name"]),
            names.KIND_LABEL: kind.plural,
        },
        "ownerReferences": [owner(kind, job)],
    }


def label_value(name: str) -> str:
    """Return a name in the form of a label's value: names may have 253 characters, values of labels 63."""
    if len(name) <= 63:
        return name
    return f"{name[:50].rstrip('-.')}-{digest(name)[:12]}"


def service_name(name: str) -> str:
    """Return a name in the form of a Service's name: it must begin with a letter, unlike names of jobs."""
    return name if name[:1].isalpha() else f"job-{name}"


def secret_name(job: Object, what: str) -> str:
    """Return the name of a Secret that the operator fills.

    It contains a part of the job's uid, so that a Secret of that name can only belong to the job: the operator has no
    right to read Secrets, and could not check that.
    """
    metadata = job["metadata"]
    return f"{metadata['name']}-{what}-{digest(metadata['uid'])[:6]}"


def digest(value: object) -> str:
    """Return a short digest of plain data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def append(target: dict[str, Any], key: str, items: list[Any]) -> None:
    """Append items to a list of an object, which may be missing. The list is replaced by a new one, not modified."""
    target[key] = [*(target.get(key) or ()), *items]


def mount(
    body: dict[str, Any], container: dict[str, Any], name: str, path: str, source: Object, read_only: bool = False
) -> None:
    """Add a volume to a pod's spec, and mount it in a container.

    Args:
        body: the pod's spec.
        container: one of its containers.
        name: name of the volume.
        path: its path in the container.
        source: the volume's source, such as `{"emptyDir": {}}`.
        read_only: whether the container may not write there.
    """
    append(body, "volumes", [{"name": name, **source}])
    append(container, "volumeMounts", [{"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}])
