"""A cluster that carries out what `reconcile` says, and in which pods run, fail and are lost."""

from __future__ import annotations

import json
from typing import Any

from farandole.control.kubernetes import names, times
from farandole.control.kubernetes.model import Observed, Options, Outcome, Problem, Ref, ref_of
from farandole.control.kubernetes.training_job import own_names
from farandole.control.kubernetes.training_job.reconcile import reconcile


def job_of(**spec: Any) -> dict[str, Any]:
    """Return a TrainingJob of 2 to 4 workers that asks for 3."""
    body = {
        "command": ["python", "train.py"],
        "workers": {"min": 2, "max": 4, "replicas": 3},
        "image": "me/train",
        **spec,
    }
    metadata = {"name": "job", "namespace": "team", "uid": "u-job"}
    return {"apiVersion": "farandole.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": body}


class PlayedCluster:
    """One job and what it owns.

    Attributes:
        made: names of all pods that were ever made.
    """

    def __init__(self, job: dict[str, Any], options: Options | None = None) -> None:
        self.job = job
        self.options = options or Options()
        self.now = 1_000_000.0
        self.children: dict[Ref, dict[str, Any]] = {}
        self.problems: dict[Ref, Problem] = {}
        self.made: list[str] = []
        self.refuses = False
        """Whether a quota has no room for pods."""
        self.deleted = False
        self.again_at: float | None = None

    def reconcile(self) -> Outcome:
        """Do once what is wanted, as an operator does it."""
        outcome = reconcile(Observed(self.job, dict(self.children), dict(self.problems), self.now, self.options))
        if outcome.status is not None:
            self.job = {**self.job, "status": json.loads(json.dumps(outcome.status))}
        for deletion in outcome.deletions:
            child = self.children.get(deletion.ref)
            if child is None or child["metadata"]["uid"] != deletion.uid:
                continue
            if deletion.ref.kind != "Pod":
                del self.children[deletion.ref]
            elif deletion.grace == 0 or child["status"]["phase"] in ("Succeeded", "Failed"):
                del self.children[deletion.ref]
            else:
                child["metadata"].setdefault("deletionTimestamp", times.to_text(self.now + 30))
        for wanted in outcome.wanted:
            self._make(wanted.obj)
        self.deleted = self.deleted or outcome.delete_job
        self.again_at = outcome.again_at
        return outcome

    def settle(self) -> None:
        """Reconcile until there is nothing to do."""
        for _ in range(20):
            outcome = self.reconcile()
            news = [each for each in outcome.wanted if each.ref not in self.children and each.ref not in self.problems]
            if outcome.status is None and not news and not outcome.deletions:
                return
        raise AssertionError(f"a hot loop: {outcome.reason}")

    def _make(self, obj: dict[str, Any]) -> None:
        ref = ref_of(obj)
        if ref in self.children:
            if ref.kind == "Pod":
                marks = self.children[ref]["metadata"].setdefault("annotations", {})
                marks |= obj["metadata"].get("annotations", {})
            return
        if ref.kind == "Pod" and self.refuses:
            tries = self.problems[ref].tries + 1 if ref in self.problems else 1
            self.problems[ref] = Problem(ref, "QuotaExceeded", "no room", tries, self.now + 5 * tries)
            return
        self.problems.pop(ref, None)
        metadata = {**obj["metadata"], "uid": f"u-{ref.name}", "creationTimestamp": times.to_text(self.now)}
        self.children[ref] = {**obj, "metadata": metadata, "status": {"phase": "Pending"}}
        if ref.kind == "Pod":
            assert ref.name not in self.made, f"{ref.name} was made twice"
            self.made.append(ref.name)

    # --- what happens -------------------------------------------------------------------------------------------

    def pods(self, role: str = "") -> list[dict[str, Any]]:
        """Return the pods that are there."""
        found = [child for ref, child in self.children.items() if ref.kind == "Pod"]
        return [pod for pod in found if not role or pod["metadata"]["labels"][names.ROLE_LABEL] == role]

    def names(self, role: str) -> list[str]:
        """Return the names of the pods of a role."""
        return [pod["metadata"]["name"] for pod in self.pods(role)]

    def run_all(self) -> None:
        """Let all pods run that are about to."""
        for pod in self.pods():
            if pod["status"]["phase"] == "Pending":
                pod["status"]["phase"] = "Running"

    def end(
        self,
        pod: dict[str, Any],
        code: int,
        reason: str = "",
        lifetime: float = 0.0,
        container: dict[str, str] | None = None,
    ) -> None:
        """Let a pod's program end after it has run for some seconds.

        Args:
            reason: of the pod.
            container: what else its container says of its end, such as its `reason` or `message`.
        """
        began, now = times.to_text(self.now - lifetime), times.to_text(self.now)
        ended = {"exitCode": code, "startedAt": began, "finishedAt": now, **(container or {})}
        phase = "Failed" if code or reason else "Succeeded"
        pod["status"] = {"phase": phase, "reason": reason, "containerStatuses": [{"state": {"terminated": ended}}]}

    def finish_terminating(self) -> None:
        """Let pods go that were told to."""
        for ref, child in list(self.children.items()):
            if child["metadata"].get("deletionTimestamp"):
                del self.children[ref]

    def told(self, key: str, **facts: Any) -> None:
        """Let the launcher tell something."""
        state = next(child for ref, child in self.children.items() if ref.name == own_names.state(self.job))
        state["data"] = {**state.get("data", {}), key: json.dumps(facts)}

    @property
    def status(self) -> dict[str, Any]:
        """The job's status."""
        found: dict[str, Any] = self.job.get("status", {})
        return found
