"""A TrainingJob in one of farandole's queues: it has the workers that its queue allows, or waits without pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from farandole.control.jobs.status import JobState
from farandole.control.kubernetes import conditions, gang
from farandole.control.kubernetes.model import Deletion, Observed, Outcome
from farandole.control.kubernetes.training_job import placement
from farandole.control.kubernetes.training_job.job_spec import TrainingJobSpec
from farandole.control.kubernetes.training_job.job_status import TrainingJobStatus


def admitted(
    observed: Observed, spec: TrainingJobSpec, status: TrainingJobStatus
) -> tuple[TrainingJobSpec, TrainingJobStatus]:
    """Return the spec with the workers that the queue allows, and the status with that number."""
    admission = observed.admission
    if admission is None:
        return spec, status
    status = status.with_slots(observed, admission.workers)
    spec = replace(spec, nodes=tuple(sorted(admission.nodes)))
    if not admission.workers:
        return spec, status
    limits = spec.job.workers
    most = max(limits.max, admission.workers)
    workers = msgspec.structs.replace(limits, replicas=admission.workers, max=most)
    return replace(spec, job=msgspec.structs.replace(spec.job, workers=workers)), status


def waiting(
    observed: Observed, status: TrainingJobStatus, deletions: Sequence[Deletion], again_at: float | None
) -> Outcome:
    """Return the outcome for a waiting job: without pods and PodGroup, and with the reason."""
    assert observed.admission is not None
    reason, now = observed.admission.reason, observed.now
    if status.history.launchers and not status.holds(conditions.SUSPENDED):
        # It has run before: it will continue from its checkpoint, as after a suspension by its user.
        status = status.noted("Preempted", f"The job releases its pods: {reason}"[:1000])
        status = status.with_condition(conditions.SUSPENDED, True, "Preempted", reason, now)
        for other in (conditions.RUNNING, conditions.RESTARTING):
            status = status.with_condition(other, False, "Preempted", reason, now)
    left = len(observed.pods)
    told = reason if not left else f"{reason}; {left} pods are ending"
    status = status.with_state(JobState.WAITING, told)
    status = status.with_fields(workers=placement.ready_workers(observed), wanted=0, launcher=None, progress=None)
    going = [*deletions, *gang.given_back(observed, "its queue lets it wait")]
    return status.outcome("it waits in its queue", (), going, again_at)
