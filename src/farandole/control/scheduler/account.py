"""What a job has had: since when it has its slots, and what it had before. Pure; times are seconds since 1970.

The simulator, the queue's daemon and the operator keep one for each job, and policies look at it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

AccountT = TypeVar("AccountT", bound="Account")


@dataclass(frozen=True)
class Account:
    """What a job has had.

    Attributes:
        slots: the number of slots that it may use now.
        since: when it got these slots or, without any, when it began to wait.
        started: when it first got slots; None: it never had any.
        served_before: slot-seconds before the present slots.
        ran_before: seconds with slots before the present ones.
        restarts: how often it was given other slots after its first start.
    """

    slots: int = 0
    since: float = 0.0
    started: float | None = None
    served_before: float = 0.0
    ran_before: float = 0.0
    restarts: int = 0

    def served(self, now: float) -> float:
        """Return the slot-seconds that the job has had."""
        return self.served_before + self.slots * self._passed(now)

    def ran(self, now: float) -> float:
        """Return the seconds for which the job has had slots."""
        return self.ran_before + self._passed(now)

    def _passed(self, now: float) -> float:
        # Clocks of machines differ, and the operator that begins may not be the one that goes on.
        return max(0.0, now - self.since) if self.slots else 0.0

    def changed(self: AccountT, slots: int, now: float) -> AccountT:
        """Return the account of a job that has other slots from now on; 0: none."""
        return replace(
            self,
            slots=slots,
            since=now,
            started=now if slots and self.started is None else self.started,
            served_before=self.served(now),
            ran_before=self.ran(now),
            restarts=self.restarts + bool(slots and self.started is not None),
        )
