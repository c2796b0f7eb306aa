"""The account of a job in its queue: stored in its status, so that it survives the operator. Pure.

Times are seconds since 1970.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from farandole.control.kubernetes import times
from farandole.control.kubernetes.model import Observed
from farandole.control.scheduler.account import Account

KEY = "admission"
"""The field of the status that holds it."""
_KEYS = {
    "slots": "workers",
    "since": "since",
    "started": "started",
    "served_before": "served",
    "ran_before": "ran",
    "restarts": "restarts",
    "largest": "largest",
    "nodes": "nodes",
}
"""The names of an account's fields in the status."""


@dataclass(frozen=True)
class Admitted(Account):
    """The account of a job in one of farandole's queues; its slots are the workers that it may have now.

    Attributes:
        largest: the largest number of workers that it has had.
        nodes: its number of workers on each node, if its queue counts nodes.
    """

    largest: int = 0
    nodes: Mapping[str, int] = field(default_factory=dict)

    def given(self, workers: int, now: float, nodes: Mapping[str, int] | None = None) -> Admitted:
        """Return the account with another number of workers from now on, or the same number on other nodes.

        Args:
            workers: the number of workers that the job may have.
            now: seconds since 1970.
            nodes: the number of workers on each node, if the queue counts nodes.
        """
        if workers == self.slots:
            return replace(self, nodes=dict(nodes)) if nodes and dict(nodes) != self.nodes else self
        return replace(self.changed(workers, now), largest=max(self.largest, workers), nodes=dict(nodes or {}))

    def as_data(self) -> dict[str, Any]:
        """Return the account in the form of the status."""
        return {_KEYS[key]: value for key, value in asdict(self).items() if value}


def fields_with(observed: Observed, known: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """Return the status field with a job's new account; no field if no queue decides about the job.

    Args:
        known: the current fields of the status.
        workers: the number of workers that the job may have.
    """
    if observed.admission is None and KEY not in known:
        return {}
    nodes = observed.admission.nodes if observed.admission is not None else None
    account = read_account(observed.job.get("status"), submitted_at(observed.job))
    return {KEY: account.given(workers, observed.now, nodes).as_data()}


def submitted_at(job: Mapping[str, Any]) -> float:
    """Return when a job was created, in seconds since 1970; 0 if unknown."""
    return times.from_text(job["metadata"].get("creationTimestamp")) or 0.0


def read_account(status: object, submitted: float, held: int = 0) -> Admitted:
    """Read an account from a status, which may have any content.

    Args:
        status: the status of a job.
        submitted: when the job was created, in seconds since 1970.
        held: the workers that the job holds: a job without an account ran before its queue existed.
    """
    data = status.get(KEY) if isinstance(status, Mapping) else None
    data = data if isinstance(data, Mapping) else {}

    def number(key: str) -> float:
        value = data.get(_KEYS[key])
        usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
        return float(value) if usable else 0.0  # type: ignore[arg-type]

    nodes = data.get("nodes")
    places = nodes if isinstance(nodes, Mapping) else {}
    account = Admitted(
        since=number("since") or submitted,
        started=number("started") or None,
        served_before=number("served_before"),
        ran_before=number("ran_before"),
        nodes={str(name): slots for name, slots in places.items() if type(slots) is int and 0 < slots < 2**31},
        **{key: int(number(key)) for key in ("slots", "restarts", "largest")},
    )
    return account.given(held, submitted) if held and account == Admitted(since=submitted) else account
