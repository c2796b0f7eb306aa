"""The decisions about a TrainingJob: `reconcile(observed) -> outcome`, pure (see `kubernetes.model`).

The questions, in order: does this operator manage the job; has it ended; has the launcher reported its end; is it
cancelled or suspended; which pods must exist; what is its status.

A pod's index is counted in the status before the pod is created, so no two pods ever have the same name: if an operator
ends between the two, an index is skipped.
"""

from __future__ import annotations

from farandole.control.jobs.status import JobState
from farandole.control.kubernetes import conditions, gang, names, pod_state, times
from farandole.control.kubernetes.field_reader import other_manager
from farandole.control.kubernetes.job_status import name_of
from farandole.control.kubernetes.model import Deletion, Observed, Outcome, earliest, ref_of
from farandole.control.kubernetes.placement import deletions, hindrance, hindrance_due
from farandole.control.kubernetes.training_job import kueue, placement, queued, restarts, told
from farandole.control.kubernetes.training_job.around import selector
from farandole.control.kubernetes.training_job.job_spec import TrainingJobSpec, read
from farandole.control.kubernetes.training_job.job_status import TrainingJobStatus

# Seconds within which a launcher that has reported the outcome ends by itself.
_FAREWELL_SECONDS = 60.0
# Seconds after which a pod that is not scheduled, or has no image, is worth a condition.
_PATIENCE_SECONDS = 5.0


def reconcile(observed: Observed) -> Outcome:
    """Return the outcome for a TrainingJob."""
    job = observed.job
    if job["metadata"].get("deletionTimestamp"):
        return Outcome("it is being deleted, and the cluster deletes what it owns")
    if manager := other_manager(job):
        return Outcome(f"it is managed by {manager}")
    status = TrainingJobStatus.of(job)
    spec, faults = read(job)
    if status.ended:
        return _after_end(observed, spec, status)
    if spec is None:
        return _invalid(observed, status, faults)
    status = _created(observed, status)
    if spec.cancel:
        return _cancelled(observed, spec, status)
    if (end := told.outcome(observed, status.history.attempt)) is not None:
        return _ended(observed, spec, status, *end)
    if spec.suspend:
        return _suspended(observed, spec, status.with_slots(observed, 0))
    spec, status = queued.admitted(observed, spec, status)
    if observed.waits_in_queue:
        stuck, again = placement.stuck_pods(observed)
        return queued.waiting(observed, status, [*deletions(observed.pods, "its queue lets it wait"), *stuck], again)
    return _active(observed, spec, _resumed(observed, status))


def _invalid(observed: Observed, status: TrainingJobStatus, faults: list[str]) -> Outcome:
    message = "; ".join(faults)[:1000]
    status = status.with_blocked(("InvalidSpec", message), observed.now)
    return status.with_state(JobState.WAITING, message).outcome(f"its spec cannot be used: {message}")


def _created(observed: Observed, status: TrainingJobStatus) -> TrainingJobStatus:
    if conditions.find(status.conditions, conditions.CREATED):
        return status
    message = f"TrainingJob {name_of(observed)} is created."
    status = status.with_condition(conditions.CREATED, True, "TrainingJobCreated", message, observed.now)
    return status.with_fields(startTime=times.to_text(observed.now)).noted("TrainingJobCreated", message)


# --- the end --------------------------------------------------------------------------------------------------------


def _ended(observed: Observed, spec: TrainingJobSpec, status: TrainingJobStatus, code: int, report: str) -> Outcome:
    now, name = observed.now, name_of(observed)
    if code and status.history.retries < spec.job.retries:
        history = status.history
        status = status.with_history(attempt=history.attempt + 1, retries=history.retries + 1)
        message = (
            f"the training failed with exit code {code}, and starts again ({history.retries + 1} of {spec.job.retries})"
        )
        status = status.noted("TrainingRetried", f"{message}: {report}"[:1000], warning=True)
        status = status.with_condition(conditions.RESTARTING, True, "TrainingRetried", message, now)
        status = status.with_state(JobState.RESTARTING, message)
        why = "the training failed and starts again"
        return status.outcome(why, kueue.ended(observed), deletions(observed.pods, message))
    kind = conditions.FAILED if code else conditions.SUCCEEDED
    words = f"exit code {code}: {report}" if code else f"TrainingJob {name} has succeeded."
    reason = "TrainingFailed" if code else "TrainingSucceeded"
    status = status.with_fields(exitCode=code)
    return _end(observed, spec, status, kind, JobState.FAILED if code else JobState.SUCCEEDED, reason, words)


def _cancelled(observed: Observed, spec: TrainingJobSpec, status: TrainingJobStatus) -> Outcome:
    message = "it was cancelled"
    return _end(observed, spec, status, conditions.FAILED, JobState.CANCELLED, "Cancelled", message)


def _end(
    observed: Observed,
    spec: TrainingJobSpec | None,
    status: TrainingJobStatus,
    kind: str,
    state: JobState,
    reason: str,
    message: str,
) -> Outcome:
    now = observed.now
    status = status.with_condition(kind, True, reason, message, now)
    for other in (conditions.RUNNING, conditions.RESTARTING, conditions.SUSPENDED):
        status = status.with_condition(other, False, reason, message, now)
    status = status.with_blocked(None, now).with_state(state, message)
    status = status.with_fields(completionTime=times.to_text(now))
    status = status.noted(reason, message, warning=kind == conditions.FAILED)
    return _after_end(observed, spec, status)


def _after_end(observed: Observed, spec: TrainingJobSpec | None, status: TrainingJobStatus) -> Outcome:
    """Keep the ended launcher pod, for its output; delete running pods, and the job after its ttl."""
    ended = times.from_text(status.fields.get("completionTime"))
    gone_at = status.seconds_after("completionTime", spec.ttl if spec is not None else None)
    if gone_at is not None and observed.now >= gone_at:
        return status.outcome("it has ended, and ttlSecondsAfterFinished is over", delete_job=True)
    kept = [
        pod for pod in observed.pods if pod_state.role(pod) == names.LAUNCHER and pod_state.phase(pod) == "Succeeded"
    ]
    last = max(kept, key=lambda pod: pod_state.number(pod, names.INDEX_LABEL) or 0, default=None)
    going = [each for each in deletions(observed.pods, "the job has ended") if last is None or each.ref != ref_of(last)]
    farewell_at = (ended or 0.0) + _FAREWELL_SECONDS
    if status.fields.get("state") != JobState.CANCELLED.value and observed.now < farewell_at:
        going = [each for each in going if not _is_ending_launcher(observed, each)]
    farewell = farewell_at if observed.now < farewell_at and placement.live(observed, names.LAUNCHER) else None
    status = status.with_fields(workers=0, launcher=last["metadata"]["name"] if last else None)
    stuck, stuck_at = placement.stuck_pods(observed)
    going += gang.given_back(observed, "the job has ended")
    again = earliest([gone_at, stuck_at, farewell])
    return status.outcome("it has ended", kueue.ended(observed), [*going, *stuck], again)


def _is_ending_launcher(observed: Observed, deletion: Deletion) -> bool:
    """Return whether this is the launcher that has just reported the outcome, and is about to end by itself."""
    pod = next(pod for pod in observed.pods if ref_of(pod) == deletion.ref)
    return pod_state.role(pod) == names.LAUNCHER and pod_state.running(pod)


# --- suspension -----------------------------------------------------------------------------------------------------


def _suspended(observed: Observed, spec: TrainingJobSpec, status: TrainingJobStatus) -> Outcome:
    now = observed.now
    message = "The job is suspended: it has no pods until it is resumed."
    if not status.holds(conditions.SUSPENDED):
        status = status.noted("TrainingJobSuspended", message)
    status = status.with_condition(conditions.SUSPENDED, True, "TrainingJobSuspended", message, now)
    for other in (conditions.RUNNING, conditions.RESTARTING):
        status = status.with_condition(other, False, "TrainingJobSuspended", message, now)
    left = len(observed.pods)
    reason = message if not left else f"{message} {left} are ending."
    status = status.with_blocked(None, now).with_state(JobState.SUSPENDED, reason)
    status = status.with_fields(workers=placement.ready_workers(observed), wanted=0, launcher=None, progress=None)
    stuck, again = placement.stuck_pods(observed)
    why = "the job is suspended"
    going = [*deletions(observed.pods, why), *gang.given_back(observed, why)]
    return status.outcome("it is suspended", kueue.ended(observed), [*going, *stuck], again)


def _resumed(observed: Observed, status: TrainingJobStatus) -> TrainingJobStatus:
    if not status.holds(conditions.SUSPENDED):
        return status
    message = "The job is resumed: it continues from its last checkpoint, or starts again without one."
    status = status.with_condition(conditions.SUSPENDED, False, "TrainingJobResumed", message, observed.now)
    status = status.with_history(attempt=status.history.attempt + 1)
    return status.noted("TrainingJobResumed", message)


# --- while it runs --------------------------------------------------------------------------------------------------


def _active(observed: Observed, spec: TrainingJobSpec, status: TrainingJobStatus) -> Outcome:
    now = observed.now
    overdue_at = status.seconds_after("startTime", spec.deadline)
    if overdue_at is not None and now >= overdue_at:
        words = f"the job was active for longer than activeDeadlineSeconds: {spec.deadline}"
        return _end(observed, spec, status, conditions.FAILED, JobState.FAILED, "DeadlineExceeded", words)
    former = [pod for pod in observed.pods if _is_former(pod, status)]
    if former:
        why = "the training starts again, without the pods of the previous attempt"
        stuck, stuck_at = placement.stuck_pods(observed)
        going = [each for each in deletions(observed.pods, why) if any(each.ref == ref_of(pod) for pod in former)]
        status = status.with_state(
            JobState.RESTARTING if status.holds(conditions.RESTARTING) else JobState.WAITING, why
        )
        if any(pod_state.terminating(pod) for pod in observed.pods) or going:
            return status.outcome(why, (), [*going, *stuck], stuck_at)
    status, plan = placement.plan(observed, spec, status)
    status = _as_it_is(observed, spec, status)
    again = earliest([plan.again_at, overdue_at, hindrance_due(observed, _PATIENCE_SECONDS)])
    return status.outcome(plan.reason, plan.wanted, plan.deletions, again)


def _is_former(pod: object, status: TrainingJobStatus) -> bool:
    """Return whether a launcher pod belongs to a previous attempt."""
    attempt = pod_state.number(pod, names.ATTEMPT_LABEL)  # type: ignore[arg-type]
    return attempt is not None and attempt != status.history.attempt


def _as_it_is(observed: Observed, spec: TrainingJobSpec, status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status with the observed state."""
    now = observed.now
    launchers = placement.live(observed, names.LAUNCHER)
    workers = placement.ready_workers(observed)
    progress = told.progress(observed, status.history.attempt)
    query = ",".join(f"{key}={value}" for key, value in selector(observed.job, names.WORKER).items())
    status = status.with_fields(
        workers=workers,
        wanted=spec.pods,
        selector=query,
        launcher=launchers[-1]["metadata"]["name"] if launchers else None,
        progress=progress,
        queue=spec.job.queue,
    )
    status = status.with_blocked(hindrance(observed, _PATIENCE_SECONDS), now)
    size = progress.get("size") if progress is not None else None
    if isinstance(size, int) and size > 0 and workers:
        led = bool(launchers and pod_state.running(launchers[-1]))
        return _running(observed, status, size, led, restarts.failure(observed, status, spec.pods))
    waits = kueue.waiting(observed) or str((progress or {}).get("waitsFor") or "")
    failure = restarts.failure(observed, status, spec.pods)
    blocked = conditions.find(status.conditions, conditions.BLOCKED)
    if blocked is not None and blocked.get("status") == "True":
        waits = str(blocked.get("message"))
    elif failure:
        waits = failure
    reason = (
        waits or f"{workers} of {spec.pods} worker pods run; the training begins with {spec.job.workers.min} workers"
    )
    state = JobState.STARTING if workers else JobState.WAITING
    if status.holds(conditions.RUNNING):
        status = status.with_condition(conditions.RUNNING, False, "WorkersLost", reason, now)
        status = status.with_condition(conditions.RESTARTING, True, "WorkersLost", reason, now)
    elif failure:
        status = status.with_condition(conditions.RESTARTING, True, "PodFailed", failure, now)
    return status.with_state(JobState.RESTARTING if status.holds(conditions.RESTARTING) else state, reason)


def _running(observed: Observed, status: TrainingJobStatus, size: int, led: bool, failure: str) -> TrainingJobStatus:
    now = observed.now
    message = f"{size} workers train." if led else f"{size} workers train on; the launcher pod is being replaced."
    if failure:
        message = f"{message} {failure}"
    reason = "Training" if led else "LauncherLost"
    if not status.holds(conditions.RUNNING):
        status = status.noted("TrainingJobRunning", message)
    status = status.with_condition(conditions.RUNNING, True, reason, message, now)
    status = status.with_condition(conditions.RESTARTING, False, reason, message, now)
    return status.with_state(JobState.RUNNING, message)
