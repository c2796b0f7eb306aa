"""The end of an MPIJob, and its clean-up: pods by cleanPodPolicy, and the job itself after its ttl."""

from __future__ import annotations

from farandole.control.kubernetes import conditions, names, pod_state, times
from farandole.control.kubernetes.job_status import name_of
from farandole.control.kubernetes.model import Object, Observed, Outcome
from farandole.control.kubernetes.mpijob.job_spec import MpiJobSpec
from farandole.control.kubernetes.mpijob.job_status import JobStatus, replica_statuses
from farandole.control.kubernetes.placement import deletions


def succeeded(observed: Observed, spec: MpiJobSpec, status: JobStatus) -> Outcome:
    """Return the outcome with which a job succeeds."""
    message = f"MPIJob {name_of(observed)} successfully completed."
    return _ended(observed, spec, status, conditions.SUCCEEDED, "MPIJobSucceeded", message)


def failed(observed: Observed, spec: MpiJobSpec, status: JobStatus, reason: str, message: str) -> Outcome:
    """Return the outcome with which a job fails."""
    return _ended(observed, spec, status, conditions.FAILED, reason, message)


def _ended(observed: Observed, spec: MpiJobSpec, status: JobStatus, kind: str, reason: str, message: str) -> Outcome:
    now = observed.now
    for other in (conditions.RUNNING, conditions.RESTARTING):
        status = status.with_condition(other, False, reason, message, now)
    status = status.with_condition(kind, True, reason, message, now)
    status = status.with_blocked(None, now).with_fields(completionTime=times.to_text(now))
    return after_end(observed, spec, status.noted(reason, message, warning=kind == conditions.FAILED))


def after_end(observed: Observed, spec: MpiJobSpec | None, status: JobStatus) -> Outcome:
    """Return the clean-up of a job that has ended, whose conditions do not change any more."""
    gone_at = status.seconds_after("completionTime", spec.ttl if spec is not None else None)
    status = status.with_fields(replicaStatuses=replica_statuses(observed, spec))
    if gone_at is not None and observed.now >= gone_at:
        reason = "it has ended, and ttlSecondsAfterFinished is over"
        return status.outcome(reason, delete_job=True)
    clean = spec.clean if spec is not None else "None"
    left = deletions(_to_go(observed, clean), "the job has ended")
    return status.outcome("it has ended", (), left, gone_at)


def _to_go(observed: Observed, clean: str) -> list[Object]:
    """Return the objects to delete.

    A launcher that has ended is kept for its output; one that is still running, in a failed job, is not. The PodGroup
    is deleted.
    """
    going = [child for ref, child in observed.children.items() if ref.kind == "PodGroup"]
    for pod in observed.pods:
        finished = pod_state.finished(pod)
        if pod_state.role(pod) == names.LAUNCHER:
            if not finished:
                going.append(pod)
        elif clean == "All" or (clean == "Running" and not finished):
            going.append(pod)
    return going
