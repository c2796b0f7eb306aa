"""New failures since the last time: each is counted once, and decides whether the job may continue."""

from __future__ import annotations

from dataclasses import replace

from farandole.control.kubernetes import conditions, pod_state, times
from farandole.control.kubernetes.model import Object
from farandole.control.kubernetes.mpijob.history import History
from farandole.control.kubernetes.mpijob.job_status import JobStatus
from farandole.control.kubernetes.mpijob.job_view import MpiJobView

# With the restart policy ExitCode, these are the program's own codes, and a restart would end alike; codes from 128 on
# stand for signals.
_PERMANENT_CODES = range(1, 128)
# Seconds within which a launcher fails because of a lost worker: mpirun notices at once, other programs by a timeout.
_CONSEQUENCE = 300.0
Fatal = tuple[str, str]


def count(view: MpiJobView, status: JobStatus) -> tuple[JobStatus, Fatal | None]:
    """Return the status with new failures counted, and the reason to end the job, if there is one.

    A pod that is being deleted is not counted: it has not failed by itself.
    """
    present = {str(pod["metadata"].get("uid")) for pod in view.observed.pods}
    status = status.with_history(counted=status.history.counted & present)
    for index, pod in sorted(view.workers.items()):
        if _is_new(pod, status.history):
            status = _worker_failed(view, status, index, pod)
    status = _record_loss(view, status)
    fatal = None
    if view.launcher is not None and _is_new(view.launcher, status.history):
        status, fatal = _launcher_failed(view, status, view.launcher)
    if fatal is None and status.history.failures > view.spec.backoff_limit:
        fatal = "BackoffLimitExceeded", _limit_message(view, status)
    return status, fatal


def _is_new(pod: Object, history: History) -> bool:
    counted = pod["metadata"].get("uid") in history.counted
    return pod_state.phase(pod) == "Failed" and not pod_state.terminating(pod) and not counted


def _counted(history: History, pod: Object, disrupted: bool) -> History:
    return replace(
        history,
        counted=history.counted | {str(pod["metadata"].get("uid"))},
        failures=history.failures + (not disrupted),
        disruptions=history.disruptions + disrupted,
    )


def _worker_failed(view: MpiJobView, status: JobStatus, index: int, pod: Object) -> JobStatus:
    failure = pod_state.failure(pod)
    # A worker that is leaving, or never belonged to the running job, is not a loss.
    disrupted = failure.disrupted or index >= view.spec.workers
    history = _counted(status.history, pod, disrupted)
    now = view.observed.now
    # A disruption by the cluster says nothing about the next pod.
    retry_at = now if disrupted else now + history.delay()
    history = replace(history, worker_retry_at={**history.worker_retry_at, index: retry_at})
    reason = "WorkerEvicted" if failure.disrupted else "WorkerFailed"
    told = f"{pod['metadata']['name']} failed ({failure.what}); it is started again"
    status = status.remembering(history).noted(reason, told, warning=True)
    return status.with_condition(conditions.RESTARTING, True, reason, f"{told} at {times.to_text(retry_at)}", now)


def _record_loss(view: MpiJobView, status: JobStatus) -> JobStatus:
    """Record when a running launcher has lost a worker."""
    ran = status.holds(conditions.RUNNING) and status.history.formed > 0
    if not ran or all(index >= status.history.formed for index in view.missing):
        return status
    return status.with_history(loss_at=view.observed.now)


def _launcher_failed(view: MpiJobView, status: JobStatus, pod: Object) -> tuple[JobStatus, Fatal | None]:
    failure = pod_state.failure(pod)
    loss_at = status.history.loss_at
    follows = loss_at is not None and view.observed.now - loss_at < _CONSEQUENCE
    excused = failure.disrupted or follows
    history = _counted(status.history, pod, excused)
    retry_at = view.observed.now if excused else view.observed.now + history.delay()
    history = replace(history, attempt=history.attempt + 1, retry_at=retry_at, loss_at=None)
    name = pod["metadata"]["name"]
    policy = view.spec.launcher.restart_policy
    status = status.remembering(history)
    if policy == "ExitCode" and not excused and failure.exit_code in _PERMANENT_CODES:
        return status, ("MPIJobFailed", f"{name} failed: {failure.what}")
    why = f"{failure.what}; a worker was lost before" if follows else failure.what
    return status.noted("LauncherFailed", f"{name} failed ({why})", warning=True), None


def _limit_message(view: MpiJobView, status: JobStatus) -> str:
    failed = [pod for pod in view.observed.pods if pod_state.phase(pod) == "Failed"]
    last = max(failed, key=pod_state.created_at, default=None)
    told = f"; last, {last['metadata']['name']} failed: {pod_state.failure(last).what}" if last else ""
    return f"{status.history.failures} failures are more than backoffLimit: {view.spec.backoff_limit}{told}"[:1000]
