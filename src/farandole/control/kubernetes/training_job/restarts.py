"""Sentences about failed pods: which pod, how it failed, and when the next one is created."""

from __future__ import annotations

from collections.abc import Mapping

from farandole.control.kubernetes import names, pod_state, times
from farandole.control.kubernetes.model import Observed
from farandole.control.kubernetes.training_job import placement
from farandole.control.kubernetes.training_job.job_status import TrainingJobStatus


def failure(observed: Observed, status: TrainingJobStatus, wanted: int) -> str:
    """Return a sentence about the pod that failed last; "" if no pod is missing because of a failure.

    Args:
        observed: the facts about the job.
        status: the status of the job, with its last failures.
        wanted: number of wanted worker pods.
    """
    for launcher in placement.live(observed, names.LAUNCHER):
        if how := pod_state.crashed(launcher):
            return f"{launcher['metadata']['name']} failed ({how}); the kubelet starts it again"
    retry_at = status.history.retry_at()
    if retry_at is None or not status.history.fails(observed.now) or placement.ready_workers(observed) >= wanted:
        return ""
    failures = status.fields.get("failures")
    last = failures[-1] if isinstance(failures, list) and failures else None
    if not isinstance(last, Mapping):
        return ""
    follows = f"the next one is made at {times.to_text(retry_at)}" if retry_at > observed.now else "another one follows"
    return f"{last.get('pod')} failed ({last.get('what')}); {follows}"
