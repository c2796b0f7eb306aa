"""Which jobs of a namespace a queue decides about, and what it has to know of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from farandole.control.jobs.spec import DEFAULT_QUEUE
from farandole.control.kubernetes import conditions, names, pod_state, times
from farandole.control.kubernetes.accounting import Account, read_account
from farandole.control.kubernetes.kinds import MPI_JOB
from farandole.control.kubernetes.model import Object
from farandole.control.kubernetes.mpijob import job_spec
from farandole.control.kubernetes.queues.decide import QueuedJob, is_served
from farandole.control.kubernetes.queues.queue_spec import Forest
from farandole.control.kubernetes.training_job.job_spec import TrainingJobSpec, managed_by, read

MPI_JOB_PREFIX = "mpijob/"
"""Before the names of MPIJobs, in decisions: a TrainingJob may have the same name."""


class JobAndPods(NamedTuple):
    """A job, and its pods."""

    job: Object
    pods: Sequence[Object]


def queued_jobs(forest: Forest, found: Sequence[JobAndPods]) -> list[QueuedJob]:
    """Return the jobs that queues decide about, or that hold workers of theirs.

    Without any queue, jobs run as they come. With some, a job that names none belongs to `default`; without a queue of
    that name, it runs as it comes.
    """
    if not forest.names:
        return []
    jobs = []
    for job, pods in found:
        if job.get("kind") == MPI_JOB.kind:
            jobs += _queued_mpi_job(forest, job, pods)
            continue
        spec = _spec_of(job)
        if spec is None or (spec.job.queue == DEFAULT_QUEUE and DEFAULT_QUEUE not in forest.names):
            continue
        held = spec.slots * sum(_holds(pod) for pod in pods)
        if _is_over(job, spec) and not held:
            continue  # It has given everything back.
        jobs.append(_queued(job, spec, held, _places(pods, [names.WORKER], spec.slots)))
    return jobs


def _queued_mpi_job(forest: Forest, job: Object, pods: Sequence[Object]) -> list[QueuedJob]:
    """Return an MPIJob as a queue sees it, if it names one that there is: of fixed size, and never taken away."""
    spec, _ = job_spec.read(job)
    manager = job_spec.managed_by(job)
    served = is_served(job) and manager in ("", names.MPI_MANAGER, f"{names.GROUP}/{names.OPERATOR}")
    if spec is None or not served or spec.scheduling.queue not in forest.names:
        return []
    hosts = [names.WORKER] if spec.workers else []
    hosts += [names.LAUNCHER] if spec.launcher_as_worker or not spec.workers else []
    held = spec.slots * sum(pod_state.role(pod) in hosts and not pod_state.finished(pod) for pod in pods)
    over = _has_ended(job) or spec.suspend
    if over and not held:
        return []
    submitted = times.from_text(job["metadata"].get("creationTimestamp")) or 0.0
    account = read_account(job.get("status"), submitted)
    if account == Account(since=submitted) and held:
        account = account.changed(held, submitted)  # It ran before its queue was there.
    slots = max(spec.all_slots, 1)
    return [
        QueuedJob(
            name=f"{MPI_JOB_PREFIX}{job['metadata']['name']}",
            queue=spec.scheduling.queue,
            submitted=submitted,
            least=slots,
            most=slots,
            asked=slots,
            account=account,
            held=held,
            over=over,
            places=_places(pods, hosts, spec.slots),
        )
    ]


def _spec_of(job: Object) -> TrainingJobSpec | None:
    if not is_served(job) or managed_by(job) not in ("", f"{names.GROUP}/{names.OPERATOR}"):
        return None
    return read(job)[0]


def _is_over(job: Object, spec: TrainingJobSpec) -> bool:
    """Return whether a job is to have no workers, whatever a queue says."""
    return _has_ended(job) or spec.suspend or spec.cancel


def _has_ended(job: Object) -> bool:
    known = conditions.of_status(job.get("status"))
    ended = any(conditions.holds(known, kind) for kind in (conditions.SUCCEEDED, conditions.FAILED))
    return ended or bool(job["metadata"].get("deletionTimestamp"))


def _holds(pod: Object) -> bool:
    return pod_state.role(pod) == names.WORKER and not pod_state.finished(pod)


def _places(pods: Sequence[Object], roles: Sequence[str], slots: int) -> dict[str, int]:
    places: dict[str, int] = {}
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if node and pod_state.role(pod) in roles and not pod_state.finished(pod):
            places[str(node)] = places.get(str(node), 0) + slots
    return places


def _queued(job: Object, spec: TrainingJobSpec, held: int, places: Mapping[str, int]) -> QueuedJob:
    workers, shared = spec.job.workers, spec.job
    submitted = times.from_text(job["metadata"].get("creationTimestamp")) or 0.0
    elastic = shared.is_elastic
    account = read_account(job.get("status"), submitted)
    if account == Account(since=submitted) and held:
        account = account.changed(held, submitted)  # It ran before its queue was there.
    return QueuedJob(
        name=str(job["metadata"]["name"]),
        queue=shared.queue,
        submitted=submitted,
        least=workers.min if elastic else workers.replicas,
        # `kubectl scale` says how many an elastic job is to have at most.
        most=workers.replicas,
        asked=workers.replicas,
        step=spec.slots,
        priority=shared.priority,
        application=shared.application,
        duration=shared.duration,
        deadline=shared.deadline,
        suspends=shared.how_suspended != "never",
        account=account,
        held=held,
        over=_is_over(job, spec),
        places=places,
    )
