"""The status of a job of any kind while an outcome is made: conditions, history, other fields, and Events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, cast

from farandole.control.kubernetes import conditions, times
from farandole.control.kubernetes.model import Deletion, Note, Object, Observed, Outcome, Wanted

_LONGEST = 1000
"""Characters of a message, in a condition or an Event."""


class Remembered(Protocol):
    """What a status remembers, beyond what users read: a frozen dataclass."""

    def as_data(self) -> dict[str, Any]:
        """Return it as it is in the status; empty at the beginning."""


History = TypeVar("History", bound=Remembered)
Status = TypeVar("Status", bound="JobStatus[Any]")


@dataclass(frozen=True)
class JobStatus(Generic[History]):
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
    def reading(cls: type[Status], job: Object, history: Callable[[Object], Remembered]) -> Status:
        """Return a job's status, which may be anything.

        Args:
            history: reads the history from it.
        """
        found = job.get("status")
        old = found if isinstance(found, dict) else {}
        fields = {name: value for name, value in old.items() if name not in ("conditions", "history")}
        return cls(old, fields, tuple(conditions.of_status(old)), history(old))

    @property
    def ended(self) -> bool:
        """Return whether the job has ended, for good."""
        return any(self.holds(kind) for kind in (conditions.SUCCEEDED, conditions.FAILED))

    def holds(self, kind: str) -> bool:
        """Return whether a condition is there and True."""
        return conditions.holds(self.conditions, kind)

    def with_condition(self: Status, kind: str, value: bool, reason: str, message: str, now: float) -> Status:
        """Return it with a condition."""
        found = conditions.with_condition(self.conditions, kind, value, reason, message[:_LONGEST], now)
        return replace(self, conditions=tuple(found))

    def with_blocked(self: Status, why: tuple[str, str] | None, now: float) -> Status:
        """Return a status that says why a job is blocked (a reason and a sentence), or that nothing blocks it."""
        before = conditions.find(self.conditions, conditions.BLOCKED) or {}
        status = replace(self, conditions=tuple(conditions.blocked(self.conditions, why, now)))
        if why is None or (before.get("status"), before.get("reason")) == ("True", why[0]):
            return status
        return status.noted(*why, warning=True)

    def with_fields(self: Status, **fields: Any) -> Status:
        """Return it with fields; None removes one."""
        merged = {**self.fields, **fields}
        return replace(self, fields={name: value for name, value in merged.items() if value is not None})

    def with_history(self: Status, **changes: Any) -> Status:
        """Return it with a history that has changed."""
        return replace(self, history=replace(cast(Any, self.history), **changes))

    def remembering(self: Status, history: Any) -> Status:
        """Return it with another history."""
        return replace(self, history=history)

    def noted(self: Status, reason: str, message: str, warning: bool = False) -> Status:
        """Return it with one Event more."""
        return replace(self, notes=(*self.notes, Note(reason, message[:_LONGEST], warning)))

    def seconds_after(self, field: str, seconds: int | None) -> float | None:
        """Return the moment a number of seconds after the one in a field; None if one of them is missing."""
        begun = times.from_text(self.fields.get(field))
        return None if seconds is None or begun is None else begun + seconds

    def as_data(self) -> dict[str, Any]:
        """Return it as the API has it."""
        data: dict[str, Any] = {**self.fields, "conditions": [dict(item) for item in self.conditions]}
        remembered = self.history.as_data()
        return {**data, "history": remembered} if remembered else data

    def outcome(
        self,
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


def name_of(observed: Observed) -> str:
    """Return the job's name for sentences."""
    return f"{observed.metadata['namespace']}/{observed.metadata['name']}"
