"""Conditions of a job: read by `kubectl wait --for=condition=...` and by dashboards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from farandole.control.kubernetes import times
from farandole.control.kubernetes.model import Object

CREATED, RUNNING, RESTARTING, SUSPENDED, SUCCEEDED, FAILED, BLOCKED = (
    "Created",
    "Running",
    "Restarting",
    "Suspended",
    "Succeeded",
    "Failed",
    "Blocked",
)

# The reasons of the condition Blocked. The page on Kubernetes has a row for each, and a test compares them.
BLOCKED_REASONS = {
    "QuotaExceeded": "a ResourceQuota of the namespace has no room for the pod",
    "AdmissionRefused": "an admission webhook or policy refused an object of the job",
    "Invalid": "the API server says that an object made from the job's template is not valid",
    "NotPermitted": "the operator has no right to create an object of the job",
    "NameTaken": "an object with a name that the job needs exists, and belongs to something else",
    "KindMissing": "the cluster does not know a kind that the job needs, such as PodGroup",
    "NamespaceTerminating": "the job's namespace is being deleted",
    "ServerError": "the API server answered with an error of its own",
    "Unschedulable": "no node has room for a pod, or meets its requirements",
    "ImageUnavailable": "the image of a pod cannot be pulled",
    "ConfigUnavailable": "a Secret or ConfigMap that a container of the template names does not exist",
    "ContainerCannotStart": "a container of a pod cannot be started, or fails again and again",
    "InvalidSpec": "the job's spec contradicts itself or lacks something; the message says what",
}


def find(conditions: Iterable[Object], kind: str) -> Object | None:
    """Return the condition of a type, or None."""
    return next((item for item in conditions if item.get("type") == kind), None)


def holds(conditions: Iterable[Object], kind: str) -> bool:
    """Return whether a condition exists and is True."""
    found = find(conditions, kind)
    return found is not None and found.get("status") == "True"


def of_status(status: Object | None) -> list[dict[str, Any]]:
    """Return the conditions of a status, which may have any content; malformed ones are omitted."""
    found = (status or {}).get("conditions")
    return [dict(item) for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def with_condition(
    conditions: Iterable[Object], kind: str, value: bool, reason: str, message: str, now: float
) -> list[dict[str, Any]]:
    """Return the conditions, with a value, a reason and a message set for one of them.

    Times change only with other fields, so that an unchanged status is not written. A condition that never existed is
    not added as False. A condition that becomes True is moved to the end: many tools show the last one as the state.
    """
    status = "True" if value else "False"
    kept = [dict(item) for item in conditions]
    old = find(kept, kind)
    if old is None and not value:
        return kept
    if old is not None and (old.get("status"), old.get("reason"), old.get("message")) == (status, reason, message):
        return kept
    turned = old is None or old.get("status") != status
    text = times.to_text(now)
    new = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastUpdateTime": text,
        "lastTransitionTime": text if turned or old is None else old.get("lastTransitionTime", text),
    }
    others = [item for item in kept if item is not old]
    return [*others, new] if value else [new, *others]


_DURATION = re.compile(r"\b([0-9]+h)?([0-9]+m)?[0-9.]+s\b")
# The first of these that is True is the state of a job in one word.
_STATES = (SUCCEEDED, FAILED, SUSPENDED, BLOCKED, RESTARTING, RUNNING)
WAITING = "Waiting"


def state(conditions: Iterable[Object]) -> str:
    """Return the state of a job in one word."""
    known = list(conditions)
    return next((kind for kind in _STATES if holds(known, kind)), WAITING)


def blocked(conditions: Iterable[Object], why: tuple[str, str] | None, now: float) -> list[dict[str, Any]]:
    """Return conditions with the reason why a job is blocked (a word and a sentence), or None if nothing blocks it.

    A sentence that differs only in a duration counts as unchanged: the kubelet's sentences contain its waiting time.
    """
    known = list(conditions)
    if why is None:
        return with_condition(known, BLOCKED, False, "Unblocked", "Nothing blocks the job.", now)
    reason, message = why
    before = find(known, BLOCKED) or {}
    if _DURATION.sub("", str(before.get("message"))) == _DURATION.sub("", message):
        message = str(before["message"])
    return with_condition(known, BLOCKED, True, reason, message, now)
