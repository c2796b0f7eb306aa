"""The PodGroup of an MPIJob."""

from __future__ import annotations

from typing import Any

from farandole.control.kubernetes import gang, resources
from farandole.control.kubernetes.kinds import MPI_JOB
from farandole.control.kubernetes.model import Object, Options
from farandole.control.kubernetes.mpijob.job_spec import MpiJobSpec


def pod_group(job: Object, spec: MpiJobSpec, options: Options) -> dict[str, Any] | None:
    """Return the job's PodGroup; None without a gang scheduler."""
    policy = spec.scheduling
    least = policy.min_available if policy.min_available is not None else spec.workers + 1
    # The launcher is one of the pods that start together, and the others are workers.
    needed = resources.of_pods([(1, spec.launcher.pod), (max(0, min(least - 1, spec.workers)), spec.worker.pod)])
    told = gang.Gang(
        least=least,
        resources=policy.min_resources or needed,
        queue=policy.queue or "",
        priority_class=policy.priority_class or _priority_class(spec),
        timeout=policy.timeout_seconds,
    )
    return gang.pod_group(MPI_JOB, job, told, options)


def _priority_class(spec: MpiJobSpec) -> str:
    found = [replica.pod.get("priorityClassName") for replica in (spec.launcher, spec.worker)]
    return next((name for name in found if isinstance(name, str) and name), "")
