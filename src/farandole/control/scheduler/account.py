"""The resources that a job has used so far. Pure; times are in seconds since 1970.

The simulator, the queue's daemon and the operator keep one account for each job, and policies read it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

AccountT = TypeVar("AccountT", bound="Account")


@dataclass(frozen=True)
class Account:
    """The resources that a job has used so far.

    Attributes:
        slots: present number of slots.
        since: time when it got these slots or, without slots, when it began to wait.
        started: time when it first got slots; None: never.
        served_before: slot-seconds used before the present slots.
        ran_before: seconds with slots before the present ones.
        restarts: number of times that it got other slots after its first start.
    """

    slots: int = 0
    since: float = 0.0
    started: float | None = None
    served_before: float = 0.0
    ran_before: float = 0.0
    restarts: int = 0

    def served(self, now: float) -> float:
        """Return the slot-seconds that the job has used."""
        return self.served_before + self.slots * self._passed(now)

    def ran(self, now: float) -> float:
        """Return the seconds for which the job has had slots."""
        return self.ran_before + self._passed(now)

    def _passed(self, now: float) -> float:
        # Clocks of machines differ, and another replica of the operator may continue the account.
        return max(0.0, now - self.since) if self.slots else 0.0

    def changed(self: AccountT, slots: int, now: float) -> AccountT:
        """Return the account of a job that has `slots` slots from now on."""
        return replace(
            self,
            slots=slots,
            since=now,
            started=now if slots and self.started is None else self.started,
            served_before=self.served(now),
            ran_before=self.ran(now),
            restarts=self.restarts + bool(slots and self.started is not None),
        )
