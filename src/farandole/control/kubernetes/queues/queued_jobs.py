"""The jobs of a namespace that queues decide on, with the facts that the decisions need. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from farandole.control.jobs.spec import DEFAULT_QUEUE, JobSpec, Workers
from farandole.control.kubernetes import conditions, names, pod_state
from farandole.control.kubernetes.accounting import read_account, submitted_at
from farandole.control.kubernetes.field_reader import other_manager
from farandole.control.kubernetes.kinds import MPI_JOB
from farandole.control.kubernetes.model import Object
from farandole.control.kubernetes.mpijob import job_spec
from farandole.control.kubernetes.queues.queue_spec import Forest
from farandole.control.kubernetes.queues.queued_job import QueuedJob
from farandole.control.kubernetes.training_job.job_spec import TrainingJobSpec, read

MPI_JOB_PREFIX = "mpijob/"
"""Prefix of the names of MPIJobs in decisions: a TrainingJob may have the same name."""


class JobAndPods(NamedTuple):
    """A job, and its pods."""

    job: Object
    pods: Sequence[Object]


def queued_jobs(forest: Forest, found: Sequence[JobAndPods]) -> list[QueuedJob]:
    """Return the jobs that queues decide on, or that hold workers of queues.

    Without any queue, jobs run at once. With queues, a job that names none belongs to `default`; without a queue of
    that name, it runs at once.
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
        over = _has_ended(job) or spec.suspend or spec.cancel
        if over and not held:
            continue  # It holds no workers any more.
        places = _places(pods, [names.WORKER], spec.slots)
        jobs.append(_queued(str(job["metadata"]["name"]), job, spec.job, spec.slots, held, over, places))
    return jobs


def _queued_mpi_job(forest: Forest, job: Object, pods: Sequence[Object]) -> list[QueuedJob]:
    """Return an MPIJob in the queue's form, if it names an existing queue: of fixed size, and never preempted."""
    spec, _ = job_spec.read(job)
    served = _is_served(job) and not other_manager(job, names.MPI_MANAGER)
    if spec is None or not served or spec.scheduling.queue not in forest.names:
        return []
    hosts = [names.WORKER] if spec.workers else []
    hosts += [names.LAUNCHER] if spec.launcher_as_worker or not spec.workers else []
    held = spec.slots * sum(pod_state.role(pod) in hosts and not pod_state.finished(pod) for pod in pods)
    over = _has_ended(job) or spec.suspend
    if over and not held:
        return []
    slots = max(spec.all_slots, 1)
    described = JobSpec(("mpirun",), Workers(slots, slots, slots), queue=spec.scheduling.queue, suspension="never")
    name = f"{MPI_JOB_PREFIX}{job['metadata']['name']}"
    return [_queued(name, job, described, 1, held, over, _places(pods, hosts, spec.slots))]


def _spec_of(job: Object) -> TrainingJobSpec | None:
    if not _is_served(job) or other_manager(job):
        return None
    return read(job)[0]


def _is_served(job: Object) -> bool:
    """Return whether one of farandole's queues decides on a job: Kueue decides on jobs that name one of its queues."""
    labels = (job.get("metadata") or {}).get("labels") or {}
    return "kueue.x-k8s.io/queue-name" not in labels


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


def _queued(
    name: str, job: Object, spec: JobSpec, step: int, held: int, over: bool, places: Mapping[str, int]
) -> QueuedJob:
    submitted = submitted_at(job)
    account = read_account(job.get("status"), submitted, held)
    return QueuedJob(name, spec, submitted, account, step, held, over, places)
