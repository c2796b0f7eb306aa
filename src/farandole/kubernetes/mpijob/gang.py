"""Gang scheduling: the PodGroup of a job, of Volcano or of the coscheduling plugin."""

from __future__ import annotations

from typing import Any

from farandole.kubernetes import children
from farandole.kubernetes.kinds import MPI_JOB
from farandole.kubernetes.model import Object, Options
from farandole.kubernetes.mpijob.job_spec import MpiJobSpec

VOLCANO = "volcano"
VOLCANO_API = "scheduling.volcano.sh/v1beta1"
COSCHEDULING_API = "scheduling.x-k8s.io/v1alpha1"
_VOLCANO_GROUP = "scheduling.k8s.io/group-name"
_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
_COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"


def pod_group(job: Object, spec: MpiJobSpec, options: Options) -> dict[str, Any] | None:
    """Return the job's PodGroup, None without a gang scheduler."""
    if not options.gang_scheduler:
        return None
    policy = spec.scheduling
    least = policy.min_available if policy.min_available is not None else spec.workers + 1
    wanted: dict[str, Any] = {"minMember": least, "minResources": policy.min_resources}
    if options.gang_scheduler == VOLCANO:
        annotations = job["metadata"].get("annotations") or {}
        wanted["queue"] = policy.queue or annotations.get(_VOLCANO_QUEUE)
        wanted["priorityClassName"] = policy.priority_class or _priority_class(spec)
    else:
        wanted["scheduleTimeoutSeconds"] = policy.timeout_seconds
    return {
        "apiVersion": VOLCANO_API if options.gang_scheduler == VOLCANO else COSCHEDULING_API,
        "kind": "PodGroup",
        "metadata": children.metadata_of(MPI_JOB, job, job["metadata"]["name"]),
        "spec": {name: value for name, value in wanted.items() if value not in (None, "")},
    }


def decorate(pod: dict[str, Any], job: Object, options: Options) -> None:
    """Make a pod a member of its job's PodGroup, for the gang scheduler."""
    if not options.gang_scheduler:
        return
    pod["spec"]["schedulerName"] = options.gang_scheduler
    group = job["metadata"]["name"]
    if options.gang_scheduler == VOLCANO:
        pod["metadata"]["annotations"][_VOLCANO_GROUP] = group
    else:
        pod["metadata"]["labels"][_COSCHEDULING_GROUP] = group


def _priority_class(spec: MpiJobSpec) -> str:
    found = [replica.pod.get("priorityClassName") for replica in (spec.launcher, spec.worker)]
    return next((name for name in found if isinstance(name, str) and name), "")
