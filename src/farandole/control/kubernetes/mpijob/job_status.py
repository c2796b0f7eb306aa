"""The status of an MPIJob while an outcome is made."""

from __future__ import annotations

from typing import Any

from farandole.control.kubernetes import children, conditions, job_status, names, pod_state
from farandole.control.kubernetes.model import Object, Observed
from farandole.control.kubernetes.mpijob import history
from farandole.control.kubernetes.mpijob.history import History
from farandole.control.kubernetes.mpijob.job_spec import MpiJobSpec


class JobStatus(job_status.JobStatus[History]):
    """A status of an MPIJob, whose state in one word follows from its conditions."""

    @classmethod
    def of(cls, job: Object) -> JobStatus:
        """Read a job's status, which may be anything."""
        return cls.reading(job, history.read)

    def as_data(self) -> dict[str, Any]:
        """Return it as the API has it."""
        return {**super().as_data(), "state": conditions.state(self.conditions)}


def replica_statuses(observed: Observed, spec: MpiJobSpec | None) -> dict[str, dict[str, Any]]:
    """Return how many pods of each role are active and have ended; numbers of 0 are left out, as users' tools know."""
    counts: dict[str, dict[str, Any]] = {"Launcher": {}, "Worker": {}}
    keys = {"Running": "active", "Succeeded": "succeeded", "Failed": "failed"}
    for pod in observed.pods:
        role = pod_state.role(pod).capitalize()
        key = keys.get(pod_state.phase(pod))
        if role in counts and key:
            counts[role][key] = counts[role].get(key, 0) + 1
    if spec is not None:
        job = children.label_value(observed.metadata["name"])
        # What the scale subresource, and with it an autoscaler, finds the workers by.
        counts["Worker"]["selector"] = f"{names.TRAINING_JOB_LABEL}={job},{names.TRAINING_ROLE_LABEL}={names.WORKER}"
    return counts
