"""Suspension: a suspended job has no pods, and starts from the beginning when it is resumed."""

from __future__ import annotations

from farandole.control.kubernetes import conditions, times
from farandole.control.kubernetes.job_status import name_of
from farandole.control.kubernetes.model import Observed, Outcome
from farandole.control.kubernetes.mpijob.job_spec import MpiJobSpec
from farandole.control.kubernetes.mpijob.job_status import JobStatus, replica_statuses
from farandole.control.kubernetes.placement import deletions


def suspended(observed: Observed, spec: MpiJobSpec, status: JobStatus) -> Outcome:
    """Return the outcome for a suspended job."""
    message = f"MPIJob {name_of(observed)} is suspended."
    news = not status.holds(conditions.SUSPENDED)
    return without_pods(observed, spec, status, ("MPIJobSuspended", message), news)


def without_pods(observed: Observed, spec: MpiJobSpec, status: JobStatus, why: tuple[str, str], news: bool) -> Outcome:
    """Return the outcome for a job that must have no pods: they are deleted, with the PodGroup.

    Args:
        why: a reason and a sentence.
        news: whether to report it as an Event.
    """
    going = [child for ref, child in observed.children.items() if ref.kind in ("Pod", "PodGroup")]
    if news:
        status = status.noted(*why)
    for kind in (conditions.RUNNING, conditions.RESTARTING):
        status = status.with_condition(kind, False, *why, observed.now)
    status = status.with_condition(conditions.SUSPENDED, True, *why, observed.now)
    status = status.with_blocked(None, observed.now)
    # The failures that count against backoffLimit stay, and so does the attempt: the launcher's pod may still exist.
    status = status.with_history(formed=0, leaving={}, worker_retry_at={}, loss_at=None)
    status = status.with_fields(startTime=None, replicaStatuses=replica_statuses(observed, spec))
    return status.outcome(f"it has no pods: {why[1]}", (), deletions(going, why[1]))


def resumed(observed: Observed, status: JobStatus) -> JobStatus:
    """Return the status of a job that is not, or no longer, suspended: it has a start time."""
    if status.holds(conditions.SUSPENDED):
        message = f"MPIJob {name_of(observed)} is resumed."
        status = status.with_condition(conditions.SUSPENDED, False, "MPIJobResumed", message, observed.now)
        status = status.noted("MPIJobResumed", message)
    if times.from_text(status.fields.get("startTime")) is None:
        status = status.with_fields(startTime=times.to_text(observed.now))
    return status
