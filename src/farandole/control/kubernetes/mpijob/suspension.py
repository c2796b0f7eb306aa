"""A job that is suspended has no pods, and starts from the beginning when it is resumed."""

from __future__ import annotations

from dataclasses import replace

from farandole.control.kubernetes import conditions, times
from farandole.control.kubernetes.model import Note, Observed, Outcome
from farandole.control.kubernetes.mpijob.blocked import with_blocked
from farandole.control.kubernetes.mpijob.ending import deletion_of
from farandole.control.kubernetes.mpijob.job_spec import MpiJobSpec
from farandole.control.kubernetes.mpijob.job_status import JobStatus, replica_statuses


def suspended(observed: Observed, spec: MpiJobSpec, status: JobStatus) -> Outcome:
    """Return what a suspended job needs."""
    message = f"MPIJob {observed.metadata['namespace']}/{observed.metadata['name']} is suspended."
    news = not conditions.holds(status.conditions, conditions.SUSPENDED)
    return without_pods(observed, spec, status, ("MPIJobSuspended", message), news)


def without_pods(observed: Observed, spec: MpiJobSpec, status: JobStatus, why: tuple[str, str], news: bool) -> Outcome:
    """Return what a job that is to have no pods needs: that they go, and with them what it holds in a gang scheduler.

    Args:
        why: a reason and a sentence.
        news: whether it is to be told as an Event.
    """
    going = [child for ref, child in observed.children.items() if ref.kind in ("Pod", "PodGroup")]
    deletions = [deletion_of(child, why[1]) for child in going]
    if news:
        status = status.noted(Note(*why))
    for kind in (conditions.RUNNING, conditions.RESTARTING):
        status = status.with_condition(kind, False, *why, observed.now)
    status = status.with_condition(conditions.SUSPENDED, True, *why, observed.now)
    status = with_blocked(status, None, observed.now)
    # What counts against backoffLimit stays; which launcher is the current one does, too: its pod may still be there.
    history = replace(status.history, formed=0, leaving={}, worker_retry_at={}, loss_at=None)
    status = status.with_history(history).with_fields(startTime=None, replicaStatuses=replica_statuses(observed, spec))
    return status.outcome(observed, f"it has no pods: {why[1]}", (), [item for item in deletions if item is not None])


def resumed(observed: Observed, status: JobStatus) -> JobStatus:
    """Return the status of a job that is not suspended (any more): it has a start."""
    if conditions.holds(status.conditions, conditions.SUSPENDED):
        message = f"MPIJob {observed.metadata['namespace']}/{observed.metadata['name']} is resumed."
        status = status.with_condition(conditions.SUSPENDED, False, "MPIJobResumed", message, observed.now)
        status = status.noted(Note("MPIJobResumed", message))
    if times.from_text(status.fields.get("startTime")) is None:
        status = status.with_fields(startTime=times.to_text(observed.now))
    return status
