"""What a job has had in its queue: kept in its status, so that it survives the operator. Pure.

Times are seconds since 1970. They are what policies look at: since when a job has what it has, and what it had before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

KEY = "admission"
"""Of the status."""


@dataclass(frozen=True)
class Account:
    """What a job has had."""

    workers: int = 0
    """That it may have now."""
    since: float = 0.0
    """Since when; or since when it waits."""
    started: float | None = None
    """When it was admitted first."""
    served: float = 0.0
    """Worker-seconds before the present number."""
    ran: float = 0.0
    """Seconds with workers before that."""
    restarts: int = 0
    largest: int = 0
    """The most that it has had."""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """How many workers it was to have on which node, where its queue knows nodes."""

    def changed(self, workers: int, now: float, nodes: Mapping[str, int] | None = None) -> Account:
        """Return it with another number of workers from now on, or the same on other nodes.

        Args:
            workers: that it may have.
            now: seconds since 1970.
            nodes: where they are to be, as far as the queue knows nodes.
        """
        if workers == self.workers:
            return replace(self, nodes=dict(nodes)) if nodes and dict(nodes) != self.nodes else self
        passed = max(0.0, now - self.since) if self.workers else 0.0
        return replace(
            self,
            workers=workers,
            nodes=dict(nodes or {}),
            since=now,
            started=now if workers and self.started is None else self.started,
            served=self.served + passed * self.workers,
            ran=self.ran + passed,
            restarts=self.restarts + bool(workers and self.started is not None),
            largest=max(self.largest, workers),
        )

    def as_data(self) -> dict[str, Any]:
        """Return it as it is in the status."""
        return {key: value for key, value in asdict(self).items() if value}


def read_account(status: object, submitted: float) -> Account:
    """Read it from a status, which may be anybody's."""
    data = status.get(KEY) if isinstance(status, Mapping) else None
    if not isinstance(data, Mapping):
        return Account(since=submitted)

    def number(key: str) -> float:
        value = data.get(key)
        usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
        return float(value) if usable else 0.0  # type: ignore[arg-type]

    started = number("started") or None
    whole = {key: int(number(key)) for key in ("workers", "restarts", "largest")}
    nodes = data.get("nodes")
    places = nodes if isinstance(nodes, Mapping) else {}
    usable = {str(name): slots for name, slots in places.items() if type(slots) is int and 0 < slots < 2**31}
    return Account(
        nodes=usable,
        since=number("since") or submitted,
        started=started,
        served=number("served"),
        ran=number("ran"),
        **whole,
    )
