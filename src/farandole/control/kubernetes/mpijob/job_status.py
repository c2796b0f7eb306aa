"""The status of an MPIJob while an outcome is computed."""

from __future__ import annotations

from typing import Any

from farandole.control.kubernetes import children, conditions, job_status, names, pod_state
from farandole.control.kubernetes.model import Object, Observed
from farandole.control.kubernetes.mpijob import history
from farandole.control.kubernetes.mpijob.history import History
from farandole.control.kubernetes.mpijob.job_spec import MpiJobSpec


class JobStatus(job_status.JobStatus[History]):
    """The status of an MPIJob, which contains the state in one word, derived from the conditions."""

    @classmethod
    def of(cls, job: Object) -> JobStatus:
        """Read a job's status, which may have any content."""
        return cls.reading(job, history.read)

    def as_data(self) -> dict[str, Any]:
        """Return the status in the form of the API."""
        return {**super().as_data(), "state": conditions.state(self.conditions)}


def replica_statuses(observed: Observed, spec: MpiJobSpec | None) -> dict[str, dict[str, Any]]:
    """Return the numbers of active and ended pods of each role; zeros are omitted, as users' tools expect."""
    counts: dict[str, dict[str, Any]] = {"Launcher": {}, "Worker": {}}
    keys = {"Running": "active", "Succeeded": "succeeded", "Failed": "failed"}
    for pod in observed.pods:
        role = pod_state.role(pod).capitalize()
        key = keys.get(pod_state.phase(pod))
        if role in counts and key:
            counts[role][key] = counts[role].get(key, 0) + 1
    if spec is not None:
        job = children.label_value(observed.metadata["name"])
        # The selector with which the scale subresource, and so an autoscaler, finds the workers.
        counts["Worker"]["selector"] = f"{names.TRAINING_JOB_LABEL}={job},{names.TRAINING_ROLE_LABEL}={names.WORKER}"
    return counts
