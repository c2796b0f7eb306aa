"""The status of a job of any kind while an outcome is computed: conditions, history, other fields, and Events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, cast

from farandole.control.kubernetes import conditions, times
from farandole.control.kubernetes.accounting import fields_with
from farandole.control.kubernetes.model import Deletion, Note, Object, Observed, Outcome, Wanted

_LONGEST = 1000
"""Maximum number of characters of a message, in a condition or an Event."""


class Remembered(Protocol):
    """The part of a status that only the operator reads: a frozen dataclass."""

    def as_data(self) -> dict[str, Any]:
        """Return it in the form of the status; empty for a new job."""


History = TypeVar("History", bound=Remembered)
Status = TypeVar("Status", bound="JobStatus[Any]")


@dataclass(frozen=True)
class JobStatus(Generic[History]):
    """An immutable status; each change returns a new one.

    Attributes:
        old: the current status in the API.
        fields: all fields except conditions and history.
    """

    old: Object
    fields: Object
    conditions: tuple[Object, ...]
    history: History
    notes: tuple[Note, ...] = ()

    @classmethod
    def reading(cls: type[Status], job: Object, history: Callable[[Object], Remembered]) -> Status:
        """Read a job's status, which may have any content.

        Args:
            history: reads the history from the status.
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
        """Return whether a condition exists and is True."""
        return conditions.holds(self.conditions, kind)

    def with_condition(self: Status, kind: str, value: bool, reason: str, message: str, now: float) -> Status:
        """Return the status with a condition."""
        found = conditions.with_condition(self.conditions, kind, value, reason, message[:_LONGEST], now)
        return replace(self, conditions=tuple(found))

    def with_blocked(self: Status, why: tuple[str, str] | None, now: float) -> Status:
        """Return the status with the reason why the job is blocked (a word and a sentence); None: it is not blocked."""
        before = conditions.find(self.conditions, conditions.BLOCKED) or {}
        status = replace(self, conditions=tuple(conditions.blocked(self.conditions, why, now)))
        if why is None or (before.get("status"), before.get("reason")) == ("True", why[0]):
            return status
        return status.noted(*why, warning=True)

    def with_fields(self: Status, **fields: Any) -> Status:
        """Return the status with fields; None removes a field."""
        merged = {**self.fields, **fields}
        return replace(self, fields={name: value for name, value in merged.items() if value is not None})

    def with_slots(self: Status, observed: Observed, slots: int) -> Status:
        """Return the status with the workers that the job may have from now on; unchanged without a queue."""
        return self.with_fields(**fields_with(observed, self.fields, slots))

    def with_history(self: Status, **changes: Any) -> Status:
        """Return the status with changes to its history."""
        return replace(self, history=replace(cast(Any, self.history), **changes))

    def remembering(self: Status, history: Any) -> Status:
        """Return the status with another history."""
        return replace(self, history=history)

    def noted(self: Status, reason: str, message: str, warning: bool = False) -> Status:
        """Return the status with one more Event."""
        return replace(self, notes=(*self.notes, Note(reason, message[:_LONGEST], warning)))

    def seconds_after(self, field: str, seconds: int | None) -> float | None:
        """Return the time `seconds` after the time in a field; None if either is missing."""
        begun = times.from_text(self.fields.get(field))
        return None if seconds is None or begun is None else begun + seconds

    def as_data(self) -> dict[str, Any]:
        """Return the status in the form of the API."""
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
        """Return the outcome that writes the status, if it differs from the current one."""
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
    """Return the job's name for messages."""
    return f"{observed.metadata['namespace']}/{observed.metadata['name']}"
