"""The pods that a TrainingJob needs: one launcher pod and a number of worker pods; ended pods are deleted."""

from __future__ import annotations

from farandole.control.kubernetes import names, pod_state, times
from farandole.control.kubernetes.model import Deletion, Object, Observed, Wanted, earliest
from farandole.control.kubernetes.placement import Placement, deletion, not_refused
from farandole.control.kubernetes.training_job import kueue, own_names, pods, told
from farandole.control.kubernetes.training_job.around import around
from farandole.control.kubernetes.training_job.job_spec import TrainingJobSpec
from farandole.control.kubernetes.training_job.job_status import TrainingJobStatus

# Seconds after which a succeeded worker pod means that the pod was released, not that the job is about to end.
_SETTLE_SECONDS = 10.0
# Seconds after its grace period for which a pod that is being deleted may exist before its node is considered lost.
_STUCK_SECONDS = 20.0
# Seconds for which a launcher that was killed must have run before it is replaced instead of waiting for the kubelet,
# whose delays grow up to 5 minutes, longer than workers wait. One that is killed earlier may be killed again and again.
_LAUNCHER_LIFETIME_SECONDS = 10.0
_MOST_AT_ONCE = 100


def live(observed: Observed, role: str) -> list[Object]:
    """Return pods of a role that run or are about to, in the order of their creation."""
    found = [
        pod
        for pod in observed.pods
        if pod_state.role(pod) == role and not pod_state.finished(pod) and not pod_state.terminating(pod)
    ]
    return sorted(found, key=lambda pod: pod_state.number(pod, names.INDEX_LABEL) or 0)


def ready_workers(observed: Observed) -> int:
    """Return the number of running worker pods."""
    return sum(pod_state.running(pod) for pod in live(observed, names.WORKER))


def plan(observed: Observed, spec: TrainingJobSpec, status: TrainingJobStatus) -> tuple[TrainingJobStatus, Placement]:
    """Return the placement of an active job."""
    status, finished, settled_at = _clear_away(observed, status)
    useless = [*_without_account(observed), *_delayed_launchers(observed)]
    status, launchers = _launcher(observed, spec, status)
    status, workers, retry_at = _workers(observed, spec, status)
    surplus = _surplus(observed, spec)
    stuck, stuck_at = stuck_pods(observed)
    group = pods.pod_group(observed.job, spec, observed.options)
    groups = [Wanted(group)] if group is not None else []
    configs = [Wanted(each) for each in pods.environments(observed.job, spec)]
    beside = [*around(observed.job, spec), *configs, *groups]
    wanted, refused_at = not_refused(observed, [*beside, *launchers, *workers])
    made = [item.ref.name for item in (*launchers, *workers)]
    reason = f"to be created: {', '.join(made[:5])}" if made else "it has the pods that it needs"
    again = earliest([settled_at, retry_at, refused_at, stuck_at])
    return status, Placement(reason, tuple(wanted), (*finished, *useless, *surplus, *stuck), again)


def _clear_away(
    observed: Observed, status: TrainingJobStatus
) -> tuple[TrainingJobStatus, list[Deletion], float | None]:
    """Count failed pods, record their last output, and delete ended pods."""
    with_workers = told.pods_with_workers(observed, status.history.attempt)
    present = {str(pod["metadata"].get("uid")) for pod in observed.pods}
    status = status.with_history(counted=status.history.counted & present)
    going, settled = [], []
    lifetimes: dict[str, float] = {}
    for pod in observed.pods:
        if not pod_state.finished(pod) or pod_state.terminating(pod):
            continue
        name, uid = pod["metadata"]["name"], str(pod["metadata"].get("uid"))
        if pod_state.phase(pod) == "Succeeded":
            ended = pod_state.ended_at(pod)
            if ended is not None and observed.now < ended + _SETTLE_SECONDS:
                settled.append(ended + _SETTLE_SECONDS)
                continue
            going.append(deletion(pod, "it has ended, and the job continues"))
            continue
        failure = pod_state.failure(pod)
        if uid not in status.history.counted:
            status = status.with_history(counted=status.history.counted | {uid})
            if not failure.disrupted:
                status = status.with_failure(name, failure, observed.now)
            if _may_fail_again(failure, name in with_workers):
                lifetimes[uid] = pod_state.lifetime(pod)
            kind = "Evicted" if failure.disrupted else "Failed"
            role = pod_state.role(pod).capitalize()
            status = status.noted(f"{role}{kind}", f"{name} failed ({failure.what}); another one follows", warning=True)
        going.append(deletion(pod, "it has failed, and another one follows"))
    status = status.remembering(status.history.failed(lifetimes, observed.now))
    return status, going, earliest(settled)


def _may_fail_again(failure: pod_state.Failure, had_workers: bool) -> bool:
    """Return whether the next pod may fail for the same reason, and so is delayed.

    A pod that was able to run workers and was killed from outside is no reason to expect that.
    """
    return not failure.disrupted and not (failure.killed and had_workers)


def _launcher(
    observed: Observed, spec: TrainingJobSpec, status: TrainingJobStatus
) -> tuple[TrainingJobStatus, list[Wanted]]:
    """Ensure one launcher pod. A pod that is about to end does not count: its successor fences it off."""
    if live(observed, names.LAUNCHER) or _holds_the_place(observed):
        return status, []
    refused = _refused(observed, names.LAUNCHER)
    index = refused[0] if refused else status.history.launchers
    attempt = status.history.attempt
    single = not kueue.missing_members(observed, spec, attempt, names.LAUNCHER)
    pod = pods.launcher(observed.job, spec, observed.options, index, attempt)
    pod = kueue.join(pod, observed.job, spec, attempt, single)
    if refused:
        return status, [Wanted(pod)]
    if index:
        status = status.noted("LauncherReplaced", f"{pod['metadata']['name']} takes the job over")
    return status.with_history(launchers=index + 1), [Wanted(pod)]


def _without_account(observed: Observed) -> list[Deletion]:
    """Return launcher pods that can no longer write, because their ServiceAccount was deleted and created again."""
    name = own_names.account(observed.job)
    made = [
        pod_state.created_at(child)
        for ref, child in observed.children.items()
        if (ref.kind, ref.name) == ("ServiceAccount", name)
    ]
    why = f"its ServiceAccount {name} was deleted, and the current one is another"
    return [
        deletion(pod, why) for pod in live(observed, names.LAUNCHER) if made and made[0] > pod_state.created_at(pod)
    ]


def _delayed_launchers(observed: Observed) -> list[Deletion]:
    """Return launcher pods that were killed repeatedly, so that the kubelet delays their restart."""
    why = "its program was killed, and the kubelet delays its restart"
    return [
        deletion(pod, why)
        for pod in live(observed, names.LAUNCHER)
        if pod_state.delayed_after_kill(pod, _LAUNCHER_LIFETIME_SECONDS)
    ]


def _refused(observed: Observed, role: str) -> list[int]:
    """Return the indexes of pods that the API server has refused: they are tried again with the same name."""
    start = own_names.pod(observed.job, role, 0)[:-1]
    endings = [ref.name.removeprefix(start) for ref in observed.problems if ref.kind == "Pod"]
    return sorted(int(ending) for ending in endings if ending.isdecimal())


def _holds_the_place(observed: Observed) -> bool:
    """Return whether a launcher pod has just succeeded: its outcome is about to be seen."""
    ended = [
        pod_state.ended_at(pod)
        for pod in observed.pods
        if pod_state.role(pod) == names.LAUNCHER
        and pod_state.phase(pod) == "Succeeded"
        and not pod_state.terminating(pod)
    ]
    return any(end is None or observed.now < end + _SETTLE_SECONDS for end in ended)


def _workers(
    observed: Observed, spec: TrainingJobSpec, status: TrainingJobStatus
) -> tuple[TrainingJobStatus, list[Wanted], float | None]:
    there = live(observed, names.WORKER)
    # A worker that has just succeeded may have done so because the training is over.
    settling = sum(
        pod_state.role(pod) == names.WORKER
        and pod_state.phase(pod) == "Succeeded"
        and not pod_state.terminating(pod)
        and observed.now < (pod_state.ended_at(pod) or 0.0) + _SETTLE_SECONDS
        for pod in observed.pods
    )
    attempt = status.history.attempt
    leaving = kueue.leaving_members(observed, attempt)
    members = kueue.missing_members(observed, spec, attempt, names.WORKER)
    missing = min(spec.pods - len(there) - settling - leaving, _MOST_AT_ONCE)
    if not kueue.may_have_more(observed, spec, attempt):
        missing = min(missing, members)
    if missing <= 0:
        return status, [], None
    retry_at = status.history.retry_at()
    if retry_at is not None and observed.now < retry_at:
        return status, [], retry_at
    again = _refused(observed, names.WORKER)[:missing]
    first = status.history.workers
    more = missing - len(again)
    indexes = [*again, *range(first, first + more)]
    made = []
    for place, index in enumerate(indexes):
        pod = pods.worker(observed.job, spec, observed.options, index)
        made.append(Wanted(kueue.join(pod, observed.job, spec, attempt, single=place >= members)))
    return status.with_history(workers=first + more), made, None


def _surplus(observed: Observed, spec: TrainingJobSpec) -> list[Deletion]:
    """Return the surplus worker pods: first those that do not run, then the youngest."""
    there = live(observed, names.WORKER)
    by_worth = sorted(there, key=lambda pod: (kueue.is_single(pod), not pod_state.running(pod), there.index(pod)))
    why = f"the job needs only {spec.pods} worker pods"
    return [deletion(pod, why) for pod in by_worth[spec.pods :]]


def stuck_pods(observed: Observed) -> tuple[list[Deletion], float | None]:
    """Return the deletions of pods on nodes that do not answer any more, which no other controller deletes, and when to
    check again."""
    going, later = [], []
    for pod in observed.pods:
        ends = times.from_text(pod["metadata"].get("deletionTimestamp"))
        if ends is None or (pod_state.finished(pod) and pod["metadata"].get("finalizers")):
            continue
        # The time stamp includes the grace period.
        if observed.now >= ends + _STUCK_SECONDS:
            why = "it was told to end, and its node does not answer"
            going.append(deletion(pod, why, grace=0))
        else:
            later.append(ends + _STUCK_SECONDS)
    return going, earliest(later)
