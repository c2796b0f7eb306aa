"""The pods that a job needs, and their host lists."""

from __future__ import annotations

from typing import Any

from farandole.control.kubernetes import children, names, pod_state
from farandole.control.kubernetes.model import Deletion, Object, Ref, Wanted, earliest
from farandole.control.kubernetes.mpijob import access, gang, hosts, pods
from farandole.control.kubernetes.mpijob.job_status import JobStatus
from farandole.control.kubernetes.mpijob.job_view import MpiJobView
from farandole.control.kubernetes.placement import Placement, deletion, not_refused


def plan(view: MpiJobView, status: JobStatus) -> tuple[JobStatus, Placement]:
    """Return the placement, and the status with the decisions about leaving workers."""
    files = hosts.data(view.observed.job, view.spec, view.ready)
    status = _leaving(view, status, files)
    going, drain_at = _deletions(view, status)
    wanted, retry_at, reason = _wanted(view, status, files)
    if going:
        reason = f"{going[0].ref.name} is to go: {going[0].why}"
    kept, later = not_refused(view.observed, wanted)
    return status, Placement(reason, tuple(kept), tuple(going), earliest([drain_at, retry_at, later]))


def _leaving(view: MpiJobView, status: JobStatus, files: dict[str, str]) -> JobStatus:
    """Record when leaving workers disappeared from the host list that pods can read."""
    before = status.history.leaving
    surplus = [index for index in view.workers if index >= view.spec.workers]
    since = view.observed.now if _lists_are(view, files) else None
    noted = {index: before.get(index, since) for index in surplus}
    leaving = {index: at for index, at in noted.items() if at is not None}
    retries = {
        index: at
        for index, at in status.history.worker_retry_at.items()
        if index < view.spec.workers and (at > view.observed.now or index not in view.workers)
    }
    return status.with_history(leaving=leaving, worker_retry_at=retries)


def _lists_are(view: MpiJobView, files: dict[str, str]) -> bool:
    metadata = view.observed.metadata
    config = view.observed.children.get(Ref("v1", "ConfigMap", metadata["namespace"], f"{metadata['name']}-config"))
    return config is not None and config.get("data") == files


def _deletions(view: MpiJobView, status: JobStatus) -> tuple[list[Deletion], float | None]:
    """Return the pods to delete now, and the time of the next deletion."""
    found, times = [], []
    for index, pod in sorted(view.workers.items(), reverse=True):
        if pod_state.terminating(pod):
            continue
        if index >= view.spec.workers:
            due = _drained_at(view, pod, status.history.leaving.get(index))
            if due is None or due > view.observed.now:
                times.append(due)
                continue
            found.append(deletion(pod, f"the job has {view.spec.workers} workers now"))
        elif pod_state.phase(pod) == "Failed" and pod["metadata"]["uid"] in view.history.counted:
            found.append(deletion(pod, "it failed, and is started again"))
        elif pod_state.phase(pod) == "Succeeded" and view.history.attempt and not view.launcher:
            found.append(deletion(pod, "it has ended, and the next attempt of the launcher needs it again"))
    return found, earliest(times)


def _drained_at(view: MpiJobView, pod: Object, since: float | None) -> float | None:
    """Return when a worker may be deleted; None if the time is not known yet."""
    if not pod_state.running(pod) or not view.launcher_running:
        return view.observed.now
    return None if since is None else since + view.observed.options.drain_seconds


def _wanted(view: MpiJobView, status: JobStatus, files: dict[str, str]) -> tuple[list[Wanted], float | None, str]:
    """Return all objects that must exist, the time at which more may be needed, and a sentence."""
    job, spec, options, now = view.observed.job, view.spec, view.observed.options, view.observed.now
    most = max([spec.workers, *(index + 1 for index in view.workers)])
    wanted = [*access.around(job, spec, most), Wanted(access.config(job, files))]
    wanted += [Wanted(config) for config in pods.environments(job, spec)]
    group = gang.pod_group(job, spec, options)
    if group is not None:
        wanted.append(Wanted(group))
    due = {index: status.history.worker_retry_at.get(index, now) for index in range(spec.workers)}
    absent = [index for index in due if index not in view.workers]
    # An existing worker is not changed.
    wanted += [Wanted(pods.worker(job, spec, options, index)) for index in absent if due[index] <= now]
    times = [due[index] for index in absent if due[index] > now]
    launcher, at, reason = _launcher(view, status, files)
    wanted += [launcher] if launcher is not None else []
    return wanted, earliest([*times, at]), reason


def _launcher(view: MpiJobView, status: JobStatus, files: dict[str, str]) -> tuple[Wanted | None, float | None, str]:
    job, spec, options, now = view.observed.job, view.spec, view.observed.options, view.observed.now
    if view.launcher is not None:
        if pod_state.finished(view.launcher) or pod_state.terminating(view.launcher):
            return None, None, "the launcher has ended"
        return Wanted(_hosts_mark(view.launcher, files)), None, "the launcher is there"
    retry_at = status.history.retry_at if status.history.attempt else None
    if retry_at is not None and retry_at > now:
        return None, retry_at, f"attempt {status.history.attempt} of the launcher waits"
    if view.gathers_first and len(view.ready) < spec.workers:
        return None, None, f"{len(view.ready)} of {spec.workers} workers are ready; the launcher waits for all"
    pod = pods.launcher(job, spec, options, status.history.attempt, children.digest(files))
    return Wanted(pod), None, f"attempt {status.history.attempt} of the launcher starts"


def _hosts_mark(launcher: Object, files: dict[str, str]) -> dict[str, Any]:
    """Return an existing launcher with the digest of its host list: a change makes the kubelet refresh its volumes."""
    metadata = launcher["metadata"]
    name = {"name": metadata["name"], "namespace": metadata["namespace"]}
    mark = {"annotations": {names.HOSTS_ANNOTATION: children.digest(files)}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**name, **mark}}
