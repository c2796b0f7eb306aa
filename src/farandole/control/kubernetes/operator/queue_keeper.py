"""Adds the decisions of queues to the jobs that are reconciled (see `kubernetes.queues`).

Decisions are derived from the store. Those in force are kept between reconciliations; they need not survive the
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from farandole.control.kubernetes.kinds import MPI_JOB, QUEUE, TRAINING_JOB
from farandole.control.kubernetes.model import Object, Observed, Options
from farandole.control.kubernetes.operator.store import ClusterStore, JobKey
from farandole.control.kubernetes.queues.decide import Admissions, decide
from farandole.control.kubernetes.queues.queue_spec import read_queues
from farandole.control.kubernetes.queues.queued_jobs import MPI_JOB_PREFIX, JobAndPods, queued_jobs
from farandole.control.scheduler.handover import Standing

# Many jobs change at once when a queue does; each is reconciled a moment later.
_SOON = 0.2


class QueueKeeper:
    """The queues of all namespaces.

    Args:
        store: the operator's knowledge about the cluster.
        look: called with the key of a job or queue, and the seconds after which it must be reconciled.
    """

    def __init__(self, store: ClusterStore, look: Callable[[JobKey, float], None]) -> None:
        self._store = store
        self._look = look
        self._standing: dict[str, dict[str, Standing]] = {}
        self._told: dict[str, Admissions] = {}
        self._nodes: list[Object] = []

    def decided(self, key: JobKey, observed: Observed) -> Observed:
        """Return the facts about a job or a queue, with the decision of the queue."""
        namespace = key.namespace
        queues = [job for other, job in self._store.jobs() if other.kind is QUEUE and other.namespace == namespace]
        if not queues:
            self._forget(namespace)
            return observed
        forest = read_queues(queues, self._nodes)
        admissions = decide(
            forest, queued_jobs(forest, self._jobs(namespace, observed)), observed.now, self._standing.get(namespace)
        )
        self._standing[namespace] = dict(admissions.standing)
        self._reconcile_changed(key, admissions)
        if admissions.again_at is not None:
            self._look(key, max(_SOON, admissions.again_at - observed.now))
        if key.kind is QUEUE:
            return replace(observed, figures=admissions.figures.get(key.name))
        return replace(observed, admission=admissions.of_job.get(_name(key)))

    @property
    def counts_nodes(self) -> bool:
        """Return whether any queue names a resource of nodes."""
        queues = [job for key, job in self._store.jobs() if key.kind is QUEUE]
        return any(isinstance(each.get("spec"), dict) and each["spec"].get("resource") for each in queues)

    def set_nodes(self, nodes: Iterable[Object]) -> None:
        """Record the cluster's nodes; if they have changed, schedule the reconciliation of all queues."""
        known = [_counted(node) for node in nodes]
        if known == self._nodes:
            return
        self._nodes = known
        for key, _ in self._store.jobs():
            if key.kind is QUEUE:
                self._look(key, _SOON)

    def gone(self, key: JobKey) -> None:
        """Schedule the reconciliation of the queues of a deleted job, whose slots are free now."""
        for name in self._told[key.namespace].figures if key.namespace in self._told else ():
            self._look(JobKey(QUEUE.plural, key.namespace, name), _SOON)
        if key.kind is QUEUE and key.namespace in self._told:
            for name in self._told[key.namespace].of_job:
                self._look(_key(key.namespace, name), _SOON)

    def _jobs(self, namespace: str, observed: Observed) -> list[JobAndPods]:
        found = []
        for key, _ in self._store.jobs():
            if key.kind is QUEUE or key.namespace != namespace:
                continue
            each = self._store.observed(key, observed.now, Options())
            if each is not None:
                found.append(JobAndPods(each.job, each.pods))
        return found

    def _reconcile_changed(self, key: JobKey, admissions: Admissions) -> None:
        """Schedule the reconciliation of all jobs and queues whose decision has changed."""
        before = self._told.get(key.namespace)
        self._told[key.namespace] = admissions
        for name, admission in admissions.of_job.items():
            if name != _name(key) and (before is None or before.of_job.get(name) != admission):
                self._look(_key(key.namespace, name), _SOON)
        for name, figures in admissions.figures.items():
            if name != key.name and (before is None or before.figures.get(name) != figures):
                self._look(JobKey(QUEUE.plural, key.namespace, name), _SOON)

    def _forget(self, namespace: str) -> None:
        """Handle that a namespace has no queues any more: waiting jobs may run."""
        before = self._told.pop(namespace, None)
        self._standing.pop(namespace, None)
        for name in before.of_job if before is not None else ():
            self._look(_key(namespace, name), _SOON)


def _counted(node: Object) -> Object:
    """Return the part of a node that matters for queues: the rest changes all the time."""
    metadata, status = node["metadata"], node.get("status") or {}
    conditions = [each for each in status.get("conditions") or () if each.get("type") == "Ready"]
    return {
        "metadata": {"name": metadata["name"], "labels": metadata.get("labels") or {}},
        "spec": {"unschedulable": (node.get("spec") or {}).get("unschedulable")},
        "status": {
            "allocatable": status.get("allocatable") or {},
            "conditions": [{"type": "Ready", "status": each.get("status")} for each in conditions],
        },
    }


def _name(key: JobKey) -> str:
    """Return the name in decisions for a job."""
    return f"{MPI_JOB_PREFIX}{key.name}" if key.kind is MPI_JOB else key.name


def _key(namespace: str, name: str) -> JobKey:
    """Return the job for a name in decisions."""
    kind = MPI_JOB if name.startswith(MPI_JOB_PREFIX) else TRAINING_JOB
    return JobKey(kind.plural, namespace, name.removeprefix(MPI_JOB_PREFIX))
