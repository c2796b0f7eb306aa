"""The status of an MPIJob while an outcome is made: conditions, history, other fields, and Events of the changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from farandole.control.kubernetes import children, conditions, names, pod_state
from farandole.control.kubernetes.model import Deletion, Note, Object, Observed, Outcome, Wanted
from farandole.control.kubernetes.mpijob import history
from farandole.control.kubernetes.mpijob.history import History
from farandole.control.kubernetes.mpijob.job_spec import MpiJobSpec


@dataclass(frozen=True)
class JobStatus:
    """A status that is changed by making another.

    Attributes:
        old: as it is in the API.
        fields: all but conditions and history.
    """

    old: Object
    fields: Object
    conditions: tuple[Object, ...]
    history: History
    notes: tuple[Note, ...] = ()

    @classmethod
    def of(cls, job: Object) -> JobStatus:
        """Read a job's status, which may be anything."""
        found = job.get("status")
        old = found if isinstance(found, dict) else {}
        fields = {name: value for name, value in old.items() if name not in ("conditions", "history")}
        return cls(old, fields, tuple(conditions.of_status(old)), history.read(old))

    @property
    def ended(self) -> bool:
        """Return whether the job has ended, for good."""
        return any(conditions.holds(self.conditions, kind) for kind in (conditions.SUCCEEDED, conditions.FAILED))

    def with_condition(self, kind: str, value: bool, reason: str, message: str, now: float) -> JobStatus:
        """Return it with a condition."""
        found = conditions.with_condition(self.conditions, kind, value, reason, message, now)
        return replace(self, conditions=tuple(found))

    def with_fields(self, **fields: Any) -> JobStatus:
        """Return it with fields; None removes one."""
        merged = {**self.fields, **fields}
        return replace(self, fields={name: value for name, value in merged.items() if value is not None})

    def with_history(self, new: History) -> JobStatus:
        """Return it with another history."""
        return replace(self, history=new)

    def noted(self, note: Note) -> JobStatus:
        """Return it with one Event more."""
        return replace(self, notes=(*self.notes, note))

    def as_data(self) -> dict[str, Any]:
        """Return it as the API has it."""
        state = conditions.state(self.conditions)
        data: dict[str, Any] = {**self.fields, "state": state, "conditions": [dict(item) for item in self.conditions]}
        remembered = self.history.as_data()
        return {**data, "history": remembered} if remembered else data

    def outcome(
        self,
        observed: Observed,
        reason: str,
        wanted: Iterable[Wanted] = (),
        deletions: Iterable[Deletion] = (),
        again_at: float | None = None,
        delete_job: bool = False,
    ) -> Outcome:
        """Return the outcome that writes it, if it differs from what is there."""
        new = self.as_data()
        return Outcome(
            reason,
            status=None if new == self.old else new,
            wanted=tuple(wanted),
            deletions=tuple(deletions),
            notes=self.notes,
            again_at=again_at,
            delete_job=delete_job,
        )


def replica_statuses(observed: Observed, spec: MpiJobSpec | None) -> dict[str, dict[str, Any]]:
    """Return how many pods of each role are active and have ended; numbers of 0 are left out, as users' tools know."""
    counts: dict[str, dict[str, Any]] = {"Launcher": {}, "Worker": {}}
    keys = {"Running": "active", "Succeeded": "succeeded", "Failed": "failed"}
    for pod in observed.pods:
        role = pod_state.role(pod).capitalize()
        key = keys.get(pod_state.phase(pod))
        if role in counts and key:
            counts[role][key] = counts[role].get(key, 0) + 1
    if spec is not None:
        job = children.label_value(observed.metadata["name"])
        # What the scale subresource, and with it an autoscaler, finds the workers by.
        counts["Worker"]["selector"] = f"{names.TRAINING_JOB_LABEL}={job},{names.TRAINING_ROLE_LABEL}={names.WORKER}"
    return counts
