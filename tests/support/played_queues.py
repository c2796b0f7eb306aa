"""A simulated namespace with queues and TrainingJobs, in which the operator's pure functions decide, and pods obey.

Pods run at once, and are removed as soon as they are deleted, unless a test holds them.
"""

from __future__ import annotations

import json
from typing import Any

from farandole.control.kubernetes import names, times
from farandole.control.kubernetes.model import Observed, Ref, ref_of
from farandole.control.kubernetes.queues import reconcile as queue_kind
from farandole.control.kubernetes.queues.decide import Admissions, decide
from farandole.control.kubernetes.queues.queue_spec import read_queues
from farandole.control.kubernetes.queues.queued_jobs import JobAndPods, queued_jobs
from farandole.control.kubernetes.training_job import own_names
from farandole.control.kubernetes.training_job.reconcile import reconcile
from farandole.control.scheduler.handover import Standing


def queue(name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "uid": f"u-queue-{name}"}
    return {"apiVersion": "farandole.dev/v1alpha1", "kind": "Queue", "metadata": metadata, "spec": spec}


def node(name: str, ready: bool = True, **allocatable: str) -> dict[str, Any]:
    """Return a node; `gpu` is nvidia.com/gpu."""
    amounts = {{"gpu": "nvidia.com/gpu"}.get(key, key): value for key, value in allocatable.items()}
    status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": str(ready)}]}
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {}, "status": status}


class PlayedJob:
    """One TrainingJob and the objects that it owns.

    Attributes:
        left: the remaining work, in worker-seconds.
        holds: whether deleted pods are not removed yet.
    """

    def __init__(self, name: str, now: float, work: float, **spec: Any) -> None:
        body = {"command": ["train"], "workers": {"min": 1, "max": 1, "replicas": 1}, "image": "me/train", **spec}
        metadata: dict[str, Any] = {"name": name, "namespace": "team", "uid": f"u-{name}"}
        metadata["creationTimestamp"] = times.to_text(now)
        kind = {"apiVersion": "farandole.dev/v1alpha1", "kind": "TrainingJob"}
        self.job: dict[str, Any] = {**kind, "metadata": metadata, "spec": body}
        self.children: dict[Ref, dict[str, Any]] = {}
        self.left = work
        self.holds = False

    @property
    def pods(self) -> list[dict[str, Any]]:
        return [child for ref, child in self.children.items() if ref.kind == "Pod"]

    @property
    def workers(self) -> int:
        """The number of worker pods that work."""
        return sum(
            pod["metadata"]["labels"][names.ROLE_LABEL] == names.WORKER
            and not pod["metadata"].get("deletionTimestamp")
            and pod["status"]["phase"] == "Running"
            for pod in self.pods
        )

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.job.get("status", {})
        return found

    @property
    def is_over(self) -> bool:
        return self.status.get("state") in ("Succeeded", "Failed", "Cancelled")

    def take(self, observed: Observed) -> bool:
        """Apply the operator's decision; return whether anything has changed."""
        outcome = reconcile(observed)
        changed = outcome.status is not None
        if outcome.status is not None:
            self.job = {**self.job, "status": json.loads(json.dumps(outcome.status))}
        for deletion in outcome.deletions:
            if self.holds:
                self.children[deletion.ref]["metadata"]["deletionTimestamp"] = times.to_text(observed.now + 3600)
            else:
                del self.children[deletion.ref]
            changed = True
        for wanted in outcome.wanted:
            ref = ref_of(wanted.obj)
            if ref not in self.children:
                metadata = {**wanted.obj["metadata"], "uid": f"u-{ref.name}"}
                self.children[ref] = {**wanted.obj, "metadata": metadata, "status": {"phase": "Running"}}
                changed = True
        return changed

    def finish(self) -> None:
        """Make the launcher report that the job is complete."""
        state = next(child for ref, child in self.children.items() if ref.name == own_names.state(self.job))
        attempt = self.status.get("history", {}).get("attempt", 0)
        told = json.dumps({"attempt": attempt, "exitCode": 0, "report": ""})
        state["data"] = {**state.get("data", {}), own_names.OUTCOME_KEY: told}
        self.let_go()
        for ref in [ref for ref in self.children if ref.kind == "Pod"]:
            del self.children[ref]

    def let_go(self) -> None:
        """Remove the deleted pods."""
        self.holds = False
        for ref, child in list(self.children.items()):
            if child["metadata"].get("deletionTimestamp"):
                del self.children[ref]


class PlayedNamespace:
    """Queues and jobs, with a simulated clock."""

    def __init__(self, *queues: dict[str, Any]) -> None:
        self.now = 1_000_000.0
        self.queues = list(queues)
        self.nodes: list[dict[str, Any]] = []
        self.jobs: dict[str, PlayedJob] = {}
        self.admissions: Admissions | None = None
        self._standing: dict[str, Standing] = {}

    def submit(self, name: str, work: float = 10.0, workers: int = 1, most: int = 0, **spec: Any) -> PlayedJob:
        limits = {"min": workers, "max": most or workers, "replicas": most or workers}
        self.jobs[name] = PlayedJob(name, self.now, work, workers=limits, **spec)
        return self.jobs[name]

    def turn(self) -> bool:
        """Observe and decide once, as the operator does; return whether anything has changed."""
        forest = read_queues(self.queues, self.nodes)
        known = queued_jobs(forest, [JobAndPods(each.job, each.pods) for each in self.jobs.values()])
        self.admissions = decide(forest, known, self.now, self._standing)
        self._standing = dict(self.admissions.standing)
        changed = False
        for name, each in self.jobs.items():
            admission = self.admissions.of_job.get(name)
            changed |= each.take(Observed(each.job, dict(each.children), now=self.now, admission=admission))
        for number, one in enumerate(self.queues):
            figures = self.admissions.figures.get(one["metadata"]["name"])
            outcome = queue_kind.reconcile(Observed(one, now=self.now, figures=figures))
            if outcome.status is not None:
                self.queues[number] = {**one, "status": outcome.status}
                changed = True
        return changed

    def settle(self) -> None:
        """Repeat until nothing changes."""
        for _ in range(50):
            if not self.turn():
                return
        raise AssertionError("a hot loop")

    def restart_operator(self) -> None:
        """Drop the operator's memory."""
        self._standing = {}

    def next(self) -> float:
        """Return the time at which a job ends or the policy wants to decide again."""
        times_ = [self.now + each.left / each.workers for each in self.jobs.values() if each.workers and each.left > 0]
        again = self.admissions.again_at if self.admissions is not None else None
        if again is not None and again > self.now:
            times_.append(again)
        return min(times_, default=float("inf"))

    def pass_to(self, moment: float) -> None:
        """Advance the time, in which jobs work."""
        for each in self.jobs.values():
            if not each.is_over:
                each.left -= (moment - self.now) * each.workers
        self.now = moment
        for each in self.jobs.values():
            if each.left <= 1e-6 and not each.is_over and each.workers:
                each.finish()

    def has(self) -> dict[str, int]:
        """Return the number of workers of each job that has any."""
        return {name: each.workers for name, each in self.jobs.items() if each.workers}

    def reason(self, name: str) -> str:
        return str(self.jobs[name].status.get("reason", ""))
