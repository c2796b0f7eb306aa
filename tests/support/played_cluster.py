"""A cluster that is simulated in memory: objects, the states of pods, and the actions of outcomes on them.

It has no API server, and its time is `now`. A test changes the states of pods.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

from farandole.control.kubernetes import names, pod_state, times
from farandole.control.kubernetes.model import Object, Observed, Options, Outcome, Problem, Ref, Wanted

START = 1_700_000_000.0


class PlayedCluster:
    """The objects around one job."""

    def __init__(self, job: dict[str, Any], reconcile: Callable[[Observed], Outcome], options: Options) -> None:
        self.now = START
        self.job: dict[str, Any] | None = copy.deepcopy(job)
        self.job["metadata"] = {"namespace": "default", "uid": "job-uid", **self.job["metadata"]}
        self.objects: dict[Ref, dict[str, Any]] = {}
        self.problems: dict[Ref, Problem] = {}
        self.events: list[str] = []
        self.created: list[str] = []
        self._reconcile = reconcile
        self._options = options
        self._uids = itertools.count(1)

    # --- what the operator does ---

    def observed(self) -> Observed:
        assert self.job is not None
        return Observed(self.job, dict(self.objects), dict(self.problems), self.now, self._options)

    def decide(self) -> Outcome:
        return self._reconcile(self.observed())

    def step(self, until: int | None = None) -> Outcome:
        """Reconcile, and carry out the outcome, or only its first actions, as if the operator were killed then."""
        outcome = self.decide()
        for action in self.actions(outcome)[:until]:
            action()
        return outcome

    def settle(self, most: int = 20) -> Outcome:
        """Reconcile until there is nothing to do."""
        for _ in range(most):
            outcome = self.decide()
            if not self.actions(outcome):
                return outcome
            for action in self.actions(outcome):
                action()
        raise AssertionError(f"still something to do after {most} rounds: {outcome}")

    def actions(self, outcome: Outcome) -> list[Callable[[], object]]:
        """Return the actions of an outcome that are not done yet, in order."""
        found: list[Callable[[], object]] = []
        if outcome.status is not None:
            found.append(lambda: self._write_status(outcome))
        found += [
            lambda item=item: self.delete(item.ref)
            for item in outcome.deletions
            if item.ref in self.objects and not pod_state.terminating(self.objects[item.ref])
        ]
        found += [lambda item=item: self._want(item) for item in outcome.wanted if self._differs(item)]
        if outcome.delete_job:
            found.append(self.delete_job)
        return found

    def _write_status(self, outcome: Outcome) -> None:
        assert self.job is not None
        self.job["status"] = copy.deepcopy(outcome.status)
        self.events += [note.reason for note in outcome.notes]

    def _differs(self, wanted: Wanted) -> bool:
        there = self.objects.get(wanted.ref)
        return there is None or (not wanted.generate and not _contains(there, wanted.obj))

    def _want(self, wanted: Wanted) -> None:
        if wanted.ref in self.objects:
            _merge(self.objects[wanted.ref], wanted.obj)
            return
        new = copy.deepcopy(dict(wanted.obj))
        new["metadata"] |= {"uid": f"uid-{next(self._uids)}", "creationTimestamp": times.to_text(self.now)}
        if wanted.ref.kind == "Pod":
            new["status"] = {"phase": "Pending"}
            self.created.append(wanted.ref.name)
        self.objects[wanted.ref] = new

    # --- what happens ---

    def pods(self, role: str | None = None) -> dict[str, dict[str, Any]]:
        found = {ref.name: obj for ref, obj in self.objects.items() if ref.kind == "Pod"}
        return {name: pod for name, pod in found.items() if role in (None, pod_state.role(pod))}

    def pod(self, name: str) -> dict[str, Any]:
        return self.objects[Ref("v1", "Pod", "default", name)]

    def run(self, name: str, ready: bool = True) -> None:
        conditions = [{"type": "Ready", "status": str(ready)}]
        self.pod(name)["status"] = {"phase": "Running", "conditions": conditions}

    def run_all(self) -> None:
        for name, pod in self.pods().items():
            if pod_state.phase(pod) == "Pending" and not pod_state.terminating(pod):
                self.run(name)

    def end(self, name: str, code: int = 0, reason: str = "") -> None:
        terminated = {"exitCode": code, "reason": "Error" if code else "Completed"}
        self.pod(name)["status"] = {
            "phase": "Failed" if code or reason else "Succeeded",
            "reason": reason,
            "containerStatuses": [{"name": "main", "state": {"terminated": terminated}}],
        }

    def delete(self, ref: Ref) -> None:
        """Delete an object; a pod is removed later."""
        if ref.kind == "Pod":
            self.objects[ref]["metadata"]["deletionTimestamp"] = times.to_text(self.now)
        else:
            del self.objects[ref]

    def vanish(self, name: str) -> None:
        del self.objects[Ref("v1", "Pod", "default", name)]

    def vanish_terminating(self) -> None:
        for name, pod in self.pods().items():
            if pod_state.terminating(pod):
                self.vanish(name)

    def delete_job(self) -> None:
        self.job = None
        self.objects.clear()

    def start(self) -> None:
        """Bring the job to the state in which all its pods are running."""
        for _ in range(4):
            self.settle()
            self.run_all()
        self.settle()

    # --- what can be read ---

    def condition(self, kind: str) -> tuple[str, str] | None:
        assert self.job is not None
        for item in self.job.get("status", {}).get("conditions", []):
            if item["type"] == kind:
                return item["status"], item["reason"]
        return None

    def config(self) -> dict[str, str]:
        return next(obj["data"] for ref, obj in self.objects.items() if ref.kind == "ConfigMap")

    def launcher(self) -> Object:
        pods = list(self.pods(names.LAUNCHER).values())
        return max(pods, key=lambda pod: int(pod["metadata"]["labels"][names.ATTEMPT_LABEL]))


def _contains(there: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict) and isinstance(there, dict):
        return all(key in there and _contains(there[key], value) for key, value in wanted.items())
    return bool(there == wanted)


def _merge(there: dict[str, Any], wanted: Object) -> None:
    for key, value in wanted.items():
        if isinstance(value, dict) and isinstance(there.get(key), dict) and key != "data":
            _merge(there[key], value)
        else:
            there[key] = copy.deepcopy(value)
