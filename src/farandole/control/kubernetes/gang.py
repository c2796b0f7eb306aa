"""Gang scheduling: the PodGroup of a job, for Volcano or the coscheduling plugin, and the pods that belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farandole.control.kubernetes import children, names
from farandole.control.kubernetes.kinds import Kind
from farandole.control.kubernetes.model import Deletion, Object, Observed, Options
from farandole.control.kubernetes.placement import deletions

VOLCANO = "volcano"
VOLCANO_API = "scheduling.volcano.sh/v1beta1"
COSCHEDULING_API = "scheduling.x-k8s.io/v1alpha1"
KIND = "PodGroup"
_VOLCANO_GROUP = "scheduling.k8s.io/group-name"
_VOLCANO_TASK = "volcano.sh/task-spec"
_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
_COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"


@dataclass(frozen=True)
class Gang:
    """The options of a job for a gang scheduler.

    Attributes:
        least: number of pods that start together, or not at all.
        roles: number of pods of each role among them; empty if their roles do not matter.
        resources: the resources that these pods request; Volcano waits until its queue has them.
        queue: the Volcano queue; "" for the one in the job's annotation.
        timeout: seconds for which the coscheduling plugin reserves nodes for the first pods.
    """

    least: int
    roles: Mapping[str, int] = field(default_factory=dict)
    resources: Object = field(default_factory=dict)
    queue: str = ""
    priority_class: str = ""
    timeout: int | None = None


def pod_group(kind: Kind, job: Object, gang: Gang, options: Options) -> dict[str, Any] | None:
    """Return the job's PodGroup; None without a gang scheduler."""
    if not options.gang_scheduler:
        return None
    wanted: dict[str, Any] = {"minMember": gang.least, "minResources": dict(gang.resources)}
    if options.gang_scheduler == VOLCANO:
        annotations = job["metadata"].get("annotations") or {}
        wanted["queue"] = gang.queue or annotations.get(_VOLCANO_QUEUE)
        wanted["priorityClassName"] = gang.priority_class
        wanted["minTaskMember"] = dict(gang.roles)
    else:
        wanted["scheduleTimeoutSeconds"] = gang.timeout
    return {
        "apiVersion": VOLCANO_API if options.gang_scheduler == VOLCANO else COSCHEDULING_API,
        "kind": KIND,
        "metadata": children.metadata_of(kind, job, job["metadata"]["name"]),
        "spec": {name: value for name, value in wanted.items() if value not in (None, "", {})},
    }


def decorate(pod: dict[str, Any], job: Object, options: Options) -> None:
    """Make a pod a member of its job's PodGroup."""
    if not options.gang_scheduler:
        return
    pod["spec"]["schedulerName"] = options.gang_scheduler
    group = job["metadata"]["name"]
    if options.gang_scheduler == VOLCANO:
        marks = {_VOLCANO_GROUP: group, _VOLCANO_TASK: pod["metadata"]["labels"][names.ROLE_LABEL]}
        pod["metadata"].setdefault("annotations", {}).update(marks)
    else:
        pod["metadata"]["labels"][_COSCHEDULING_GROUP] = group


def given_back(observed: Observed, why: str) -> list[Deletion]:
    """Return the deletion of the PodGroup of a job that has no pods."""
    groups = [child for ref, child in observed.children.items() if ref.kind == KIND]
    return deletions(groups, why)
