"""How an MPIJob ends, and what is left of it: pods by cleanPodPolicy, and the job itself until its ttl is over."""

from __future__ import annotations

from farandole.control.kubernetes import conditions, names, pod_state, times
from farandole.control.kubernetes.model import Deletion, Note, Object, Observed, Outcome, ref_of
from farandole.control.kubernetes.mpijob.blocked import with_blocked
from farandole.control.kubernetes.mpijob.job_spec import MpiJobSpec
from farandole.control.kubernetes.mpijob.job_status import JobStatus, replica_statuses


def succeeded(observed: Observed, spec: MpiJobSpec, status: JobStatus) -> Outcome:
    """Return the outcome by which a job ends well."""
    message = f"MPIJob {_name(observed)} successfully completed."
    return _ended(observed, spec, status, conditions.SUCCEEDED, "MPIJobSucceeded", message)


def failed(observed: Observed, spec: MpiJobSpec, status: JobStatus, reason: str, message: str) -> Outcome:
    """Return the outcome by which a job fails."""
    return _ended(observed, spec, status, conditions.FAILED, reason, message)


def _ended(observed: Observed, spec: MpiJobSpec, status: JobStatus, kind: str, reason: str, message: str) -> Outcome:
    now = observed.now
    for other in (conditions.RUNNING, conditions.RESTARTING):
        status = status.with_condition(other, False, reason, message, now)
    status = status.with_condition(kind, True, reason, message, now)
    status = with_blocked(status, None, now).with_fields(completionTime=times.to_text(now))
    return after_end(observed, spec, status.noted(Note(reason, message, warning=kind == conditions.FAILED)))


def after_end(observed: Observed, spec: MpiJobSpec | None, status: JobStatus) -> Outcome:
    """Return what is left to do for a job that has ended: its conditions are what they are."""
    gone_at = _gone_at(spec, status)
    status = status.with_fields(replicaStatuses=replica_statuses(observed, spec))
    if gone_at is not None and observed.now >= gone_at:
        reason = "it has ended, and ttlSecondsAfterFinished is over"
        return status.outcome(observed, reason, delete_job=True)
    clean = spec.clean if spec is not None else "None"
    deletions = [deletion_of(child, "the job has ended") for child in _to_go(observed, clean)]
    left = [item for item in deletions if item is not None]
    return status.outcome(observed, "it has ended", (), left, gone_at)


def _to_go(observed: Observed, clean: str) -> list[Object]:
    """Return what is not kept.

    The launcher is kept for its output once it has ended; one that still runs, of a job that has failed, is not. What
    a gang scheduler holds is given back.
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


def deletion_of(child: Object, why: str) -> Deletion | None:
    """Return what deletes an object, None if that is under way."""
    if pod_state.terminating(child):
        return None
    return Deletion(ref_of(child), child["metadata"]["uid"], why)


def _gone_at(spec: MpiJobSpec | None, status: JobStatus) -> float | None:
    ended = times.from_text(status.fields.get("completionTime"))
    return None if spec is None or spec.ttl is None or ended is None else ended + spec.ttl


def _name(observed: Observed) -> str:
    return f"{observed.metadata['namespace']}/{observed.metadata['name']}"
