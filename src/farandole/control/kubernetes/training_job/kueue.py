"""TrainingJobs that Kueue admits, through its support for plain pods.

The pods of a job with the label `kueue.x-k8s.io/queue-name` get the same label. Kueue's webhook adds scheduling gates
to such pods, and removes them as its quota allows. The pods that a job needs to begin, the launcher and the minimum
number of workers, are a *pod group*, which Kueue admits as a whole. Further workers are single pods. So an elastic job
grows and shrinks with the quota; a pod group could not, because its size is fixed.

A group ends when none of its pods runs any more and one of them announces that no other pod follows. Until then Kueue
reserves the quota, and keeps the pods' finalizers, for replacements of lost pods.
"""

from __future__ import annotations

from typing import Any

from farandole.control.kubernetes import children, names, pod_state
from farandole.control.kubernetes.model import Object, Observed, Wanted
from farandole.control.kubernetes.training_job.job_spec import TrainingJobSpec

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
COUNT_ANNOTATION = "kueue.x-k8s.io/pod-group-total-count"
RETRIABLE_ANNOTATION = "kueue.x-k8s.io/retriable-in-group"


def queue_of(job: Object) -> str:
    """Return the LocalQueue that a job names; "" if it names none."""
    return str((job["metadata"].get("labels") or {}).get(QUEUE_LABEL) or "")


def group(job: Object, attempt: int) -> str:
    """Return the name of the pod group of an attempt: a group that has ended accepts no pods any more."""
    metadata = job["metadata"]
    return children.label_value(f"{metadata['name']}-{attempt}-{children.digest(metadata['uid'])[:6]}")


def join(pod: dict[str, Any], job: Object, spec: TrainingJobSpec, attempt: int, single: bool) -> dict[str, Any]:
    """Return a pod with Kueue's labels, as a member of the attempt's group or as a single pod."""
    if not queue_of(job):
        return pod
    labels = pod["metadata"]["labels"]
    given = job["metadata"].get("labels") or {}
    labels |= {name: str(given[name]) for name in (QUEUE_LABEL, PRIORITY_LABEL) if given.get(name)}
    if not single:
        labels[GROUP_LABEL] = group(job, attempt)
        pod["metadata"].setdefault("annotations", {})[COUNT_ANNOTATION] = str(1 + spec.least_pods)
    return pod


def missing_members(observed: Observed, spec: TrainingJobSpec, attempt: int, role: str) -> int:
    """Return how many pods of a role the group of an attempt may still get.

    Only failed pods may be replaced. Kueue counts all others, even if they have succeeded, and would delete surplus
    pods.
    """
    there = sum(_is_member(pod, observed, attempt, role) and pod_state.phase(pod) != "Failed" for pod in observed.pods)
    return max(0, (1 if role == names.LAUNCHER else spec.least_pods) - there)


def may_have_more(observed: Observed, spec: TrainingJobSpec, attempt: int) -> bool:
    """Return whether single pods may be created: not before the group runs, because they could take its quota."""
    if not queue_of(observed.job):
        return True
    roles = (names.LAUNCHER, names.WORKER)
    started = sum(
        any(_is_member(pod, observed, attempt, role) for role in roles)
        and pod_state.phase(pod) not in ("", "Pending", "Failed")
        for pod in observed.pods
    )
    return started == 1 + spec.least_pods


def leaving_members(observed: Observed, attempt: int) -> int:
    """Return how many workers of the group are about to end: how they end decides whether replacements follow."""
    return sum(
        _is_member(pod, observed, attempt, names.WORKER) and pod_state.terminating(pod) and not pod_state.finished(pod)
        for pod in observed.pods
    )


def is_single(pod: Object) -> bool:
    """Return whether a pod of such a job is a single pod; these are deleted first."""
    labels = pod["metadata"].get("labels") or {}
    return QUEUE_LABEL in labels and GROUP_LABEL not in labels


def _is_member(pod: Object, observed: Observed, attempt: int, role: str) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return pod_state.role(pod) == role and labels.get(GROUP_LABEL) == group(observed.job, attempt)


def ended(observed: Observed) -> list[Wanted]:
    """Return the annotations that no more pods follow in the existing groups, so that Kueue releases their quota."""
    groups: dict[str, Object] = {}
    for pod in observed.pods:
        name = (pod["metadata"].get("labels") or {}).get(GROUP_LABEL)
        if name is not None:
            if (pod["metadata"].get("annotations") or {}).get(RETRIABLE_ANNOTATION) == "false":
                groups[name] = {}
            groups.setdefault(name, pod)
    return [Wanted(_marked(pod)) for pod in groups.values() if pod]


def _marked(pod: Object) -> dict[str, Any]:
    metadata = pod["metadata"]
    name = {"name": metadata["name"], "namespace": metadata["namespace"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**name, "annotations": {RETRIABLE_ANNOTATION: "false"}}}


def waiting(observed: Observed) -> str:
    """Return a sentence about pods that Kueue has not admitted; "" if there are none."""
    held = sum(pod_state.gated(pod) for pod in observed.pods if not pod_state.terminating(pod))
    queue = queue_of(observed.job)
    return f"Kueue has not admitted {held} of its pods yet (LocalQueue {queue})" if queue and held else ""
