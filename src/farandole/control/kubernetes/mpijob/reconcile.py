"""The decisions about an MPIJob: `reconcile(observed) -> outcome`, pure (see `kubernetes.model`).

The questions, in order: does this operator manage the job; has it ended (`ending`); is it suspended (`suspension`), or
does it wait in a queue (`queued`); are there new failures, and may it be restarted (`losses`); which pods must exist
(`placement`); what is its status.
"""

from __future__ import annotations

from farandole.control.kubernetes import conditions, names
from farandole.control.kubernetes.field_reader import other_manager
from farandole.control.kubernetes.job_status import name_of
from farandole.control.kubernetes.model import Observed, Outcome, earliest
from farandole.control.kubernetes.mpijob import ending, job_spec, losses, placement, queued, suspension
from farandole.control.kubernetes.mpijob.job_spec import MpiJobSpec
from farandole.control.kubernetes.mpijob.job_status import JobStatus, replica_statuses
from farandole.control.kubernetes.mpijob.job_view import MpiJobView
from farandole.control.kubernetes.placement import hindrance, hindrance_due

# Seconds after which a pod that is not scheduled, or has no image, is worth a condition.
_PATIENCE_SECONDS = 10.0


def reconcile(observed: Observed) -> Outcome:
    """Return the outcome for an MPIJob."""
    job = observed.job
    if job["metadata"].get("deletionTimestamp"):
        return Outcome("it is being deleted, and the cluster deletes what it owns")
    if manager := other_manager(job, names.MPI_MANAGER):
        return Outcome(f"it is managed by {manager}")
    status = JobStatus.of(job)
    spec, faults = job_spec.read(job)
    if status.ended:
        return ending.after_end(observed, spec, status)
    if spec is None:
        return _invalid(observed, status, faults)
    status = _created(observed, spec, status)
    if MpiJobView.of(observed, spec, status.history).launcher_succeeded:
        return ending.succeeded(observed, spec, status)
    if spec.suspend:
        return suspension.suspended(observed, spec, status.with_slots(observed, 0))
    status = queued.admitted(observed, status)
    if observed.waits_in_queue:
        return queued.waiting(observed, spec, status)
    status = suspension.resumed(observed, status)
    return _active(observed, spec, status)


def _invalid(observed: Observed, status: JobStatus, faults: list[str]) -> Outcome:
    message = "; ".join(faults)[:1000]
    status = status.with_blocked(("InvalidSpec", message), observed.now)
    return status.outcome(f"its spec cannot be used: {message}")


def _created(observed: Observed, spec: MpiJobSpec, status: JobStatus) -> JobStatus:
    if conditions.find(status.conditions, conditions.CREATED):
        return status
    name = name_of(observed)
    status = status.with_condition(
        conditions.CREATED, True, "MPIJobCreated", f"MPIJob {name} is created.", observed.now
    )
    if spec.launcher.pod.get("restartPolicy"):
        message = "The restart policy of the launcher's pod template is ignored: Launcher.restartPolicy applies."
        status = status.noted("SetPodTemplateRestartPolicy", message, warning=True)
    return status.noted("MPIJobCreated", f"MPIJob {name} is created.")


def _active(observed: Observed, spec: MpiJobSpec, status: JobStatus) -> Outcome:
    now = observed.now
    view = MpiJobView.of(observed, spec, status.history)
    overdue_at = status.seconds_after("startTime", spec.deadline)
    if overdue_at is not None and now >= overdue_at:
        message = f"the job was active for longer than activeDeadlineSeconds: {spec.deadline}"
        return ending.failed(observed, spec, status, "DeadlineExceeded", message)
    status, fatal = losses.count(view, status)
    if fatal is not None:
        return ending.failed(observed, spec, status, *fatal)
    view = MpiJobView.of(observed, spec, status.history)
    status, plan = placement.plan(view, status)
    status = _truth(view, status)
    status = status.with_blocked(hindrance(observed, _PATIENCE_SECONDS), now)
    status = status.with_fields(replicaStatuses=replica_statuses(observed, spec))
    again = earliest([plan.again_at, overdue_at, hindrance_due(observed, _PATIENCE_SECONDS)])
    return status.outcome(plan.reason, plan.wanted, plan.deletions, again)


def _truth(view: MpiJobView, status: JobStatus) -> JobStatus:
    """Return the status with the actual values of Running and Restarting."""
    now = view.observed.now
    name = name_of(view.observed)
    was_running = status.holds(conditions.RUNNING)
    if view.whole:
        formed = view.spec.workers if view.all_running else min(status.history.formed, view.spec.workers)
        message = f"MPIJob {name} is running."
        status = status.with_history(formed=formed)
        status = status.with_condition(conditions.RESTARTING, False, "MPIJobRunning", message, now)
        status = status.with_condition(conditions.RUNNING, True, "MPIJobRunning", message, now)
        return status if was_running else status.noted("MPIJobRunning", message)
    ran_before = conditions.find(status.conditions, conditions.RUNNING) is not None
    restarts = status.history.attempt > 0 or (ran_before and status.history.formed > 0)
    if not restarts:
        return status.with_condition(conditions.RUNNING, False, "MPIJobStarting", "Pods are being started.", now)
    reason, message = view.loss()
    status = status.with_condition(conditions.RUNNING, False, reason, message, now)
    restarting = conditions.find(status.conditions, conditions.RESTARTING)
    news = restarting is None or (restarting.get("status"), restarting.get("message")) != ("True", message)
    status = status.with_condition(conditions.RESTARTING, True, reason, message, now)
    return status.noted(reason, message, warning=True) if news else status
